"""Ready sets of rules: the latency limits of MLPerf Inference per model class, and SITS's own.

MLPerf limits are p99 of TTFT and TPOT in ms for the Server and the Interactive scenario (MLPerf Inference rules and
``loadgen/mlperf.conf``, v6.1); its checker compares strictly, asks for 99% confidence by early stopping, a run of at
least 600 s, Poisson arrivals in Server, and an answer length within 10% of the reference. Passing a preset is not an
MLPerf result: that needs MLPerf's own data sets, harness and review.
"""

from __future__ import annotations

from typing import Any

# model class: (server TTFT, TPOT), (interactive TTFT, TPOT) or None
_LIMITS: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "llama-2-70b": ((2000, 200), (450, 40)),
    "llama-3.1-8b": ((2000, 100), (500, 30)),
    "llama-3.1-405b": ((6000, 175), (4500, 80)),
    "mixtral-8x7b": ((2000, 200), None),
    "deepseek-r1": ((2000, 80), (1500, 15)),
    "gpt-oss-120b": ((3000, 80), (2000, 15)),
}


def _mlperf(ttft: int, tpot: int) -> dict[str, Any]:
    return {
        "ttft": {"p99": ttft, "confidence": 0.99, "strict": True},
        "tpot": {"p99": tpot, "confidence": 0.99, "strict": True},
        "minimum-run": {"duration": 600},
        "arrivals": {"process": "poisson"},
        "output-length": {"min": 0.9, "max": 1.1},
        "warm-up": True,
        "run-complete": True,
        "client-bound": True,
    }


def _presets() -> dict[str, tuple[str, dict[str, Any]]]:
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "p3197": (
            "P3197 draft 4.2: event perception, synchronisation window, Tc, Rs, Fcau",
            {
                "event-perception": True,
                "synchronisation-window": True,
                "temporal-consistency": True,
                "state-reachability": True,
                "causal-fidelity": True,
            },
        ),
        "trustworthy": (
            "Is the run itself sound? complete, converged, warmed up, not client-bound, long enough",
            {
                "run-complete": True,
                "convergence": True,
                "warm-up": True,
                "client-bound": True,
                "records-match": True,
                "minimum-run": {"requests": 100, "duration": 10},
            },
        ),
        "mlperf/offline": (
            "MLPerf-like Offline: no latency limit, 24576 samples, 600 s",
            {
                "minimum-run": {"requests": 24576, "duration": 600},
                "error-rate": {"max": 0, "decide": "estimate"},
                "output-length": {"min": 0.9, "max": 1.1},
                "warm-up": True,
                "run-complete": True,
                "client-bound": True,
            },
        ),
    }
    for model, (server, interactive) in _LIMITS.items():
        found[f"mlperf/server/{model}"] = (
            f"MLPerf-like Server limits of {model}: p99 TTFT < {server[0]} ms, TPOT < {server[1]} ms",
            _mlperf(*server),
        )
        if interactive:
            found[f"mlperf/interactive/{model}"] = (
                f"MLPerf-like Interactive limits of {model}: p99 TTFT < {interactive[0]} ms, "
                f"TPOT < {interactive[1]} ms",
                _mlperf(*interactive),
            )
    found["mlperf/server/qwen3-vl-235b"] = (
        "MLPerf-like Server limit of Qwen3-VL-235B: p99 end to end < 12 s",
        {"e2e": {"p99": 12000, "confidence": 0.99, "strict": True}, **_without_latency(_mlperf(1, 1))},
    )
    return found


def _without_latency(rules: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rules.items() if name not in ("ttft", "tpot")}


# name: (one line about it, rules by name)
PRESETS: dict[str, tuple[str, dict[str, Any]]] = _presets()
