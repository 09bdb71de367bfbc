"""Fit :class:`Efficiency` on measured steps: Levenberg-Marquardt on log errors, and a prior that keeps few rows sane.

``python -m sits.traffic.fit benchmarks/results`` writes ``fitted.json`` with its provenance and its errors,
in-sample and leave-one-out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from sits.traffic.cards import get_card
from sits.traffic.measured import MeasuredStep, fingerprint, read_results
from sits.traffic.predict import Efficiency, predict_step

_SCALARS = ("matrix_launch_us", "other_launch_us", "step_us", "sequence_us", "overlap")
_PRIOR_SIGMA = {"bandwidth": 0.15, "compute": 0.4, "overlap": 0.3, "step_us": 0.8, "sequence_us": 1.0}
_LAUNCH_SIGMA = 0.5
# No fit may claim more than the best ever measured on an H200: a plain read for bytes (1.0 by definition), and for
# FLOPs an 8192 cube: 790 of 989 TFLOP/s in bf16, 1266 of 1979 in fp8 (which INT4 widened to FP8 can reach too).
_CEILING = {("bandwidth", "elementwise"): 4.0, ("compute", "fp8"): 0.64, ("compute", "int4_wide"): 1.28}
_COMPUTE_CEILING, _BANDWIDTH_CEILING = 0.80, 1.0
_ROW_SIGMA = 0.03  # a prior pull of one sigma costs as much as one row that is 3% off


def _names(rows: Sequence[MeasuredStep]) -> list[tuple[str, str]]:
    """Parameters these rows can say something about."""
    families = {row.step.precision.family for row in rows} | {"bf16", "attention", "elementwise"}
    wide = any(row.step.precision.family == "int4" and row.step.tokens >= 1024 for row in rows)
    order = [name for name in ("int4", "fp8", "int8", "bf16", "fp32", "attention", "elementwise") if name in families]
    return [
        *[("bandwidth", name) for name in order],
        *[("compute", name) for name in order if name != "elementwise"],
        *([("compute", "int4_wide")] if wide else []),
        *[("", name) for name in _SCALARS],
    ]


def _get(efficiency: Efficiency, group: str, name: str) -> float:
    return float(getattr(efficiency, group)[name]) if group else float(getattr(efficiency, name))


def _with(base: Efficiency, names: Sequence[tuple[str, str]], theta: np.ndarray) -> Efficiency:
    bandwidth, compute, scalars = dict(base.bandwidth), dict(base.compute), {}
    for (group, name), value in zip(names, np.exp(theta)):
        if group == "bandwidth":
            bandwidth[name] = min(float(value), _CEILING.get((group, name), _BANDWIDTH_CEILING))
        elif group == "compute":
            compute[name] = min(float(value), _CEILING.get((group, name), _COMPUTE_CEILING))
        else:
            scalars[name] = float(value)
    changes: dict[str, Any] = {"bandwidth": bandwidth, "compute": compute, **scalars}
    return replace(base, **changes)


def relative_errors(rows: Sequence[MeasuredStep], efficiency: Efficiency) -> np.ndarray:
    """predicted / measured - 1 of each row."""
    found = []
    for row in rows:
        predicted = predict_step(row.shape, row.step, get_card(row.card), efficiency, row.graphs).step_ms
        found.append(predicted / row.ms - 1.0)
    return np.array(found)


def fit(rows: Sequence[MeasuredStep], start: Efficiency | None = None, iterations: int = 60) -> Efficiency:
    """The parameters that predict ``rows`` best. All rows must be of one card and one engine."""
    base = start or Efficiency()
    names = _names(rows)
    prior = np.log([_get(base, *name) for name in names])
    sigma = np.array([_PRIOR_SIGMA.get(group or name, _LAUNCH_SIGMA) for group, name in names])

    def residuals(theta: np.ndarray) -> np.ndarray:
        errors = np.log1p(relative_errors(rows, _with(base, names, theta)))
        return np.concatenate([errors / _ROW_SIGMA, (theta - prior) / sigma])

    theta, damping = prior.copy(), 1e-2
    current = residuals(theta)
    for _ in range(iterations):
        jacobian = np.empty((len(current), len(theta)))
        for column in range(len(theta)):
            moved = theta.copy()
            moved[column] += 1e-4
            jacobian[:, column] = (residuals(moved) - current) / 1e-4
        normal = jacobian.T @ jacobian
        step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), jacobian.T @ current)
        trial = theta + np.clip(step, -0.5, 0.5)
        after = residuals(trial)
        if after @ after < current @ current:
            done = (current @ current - after @ after) < 1e-6 * (current @ current)
            theta, current, damping = trial, after, damping / 3
            if done:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return _with(base, names, theta)


def leave_one_out(rows: Sequence[MeasuredStep], start: Efficiency | None = None) -> np.ndarray:
    """Error of each row when the fit never saw it: what a prediction of a new case is worth."""
    found = []
    for index in range(len(rows)):
        rest = [row for position, row in enumerate(rows) if position != index]
        found.append(float(relative_errors([rows[index]], fit(rest, start, iterations=15))[0]))
    return np.array(found)


def summary(errors: np.ndarray) -> dict[str, float]:
    """Median and worst absolute relative error."""
    return {"median": float(np.median(np.abs(errors))), "worst": float(np.max(np.abs(errors))), "rows": len(errors)}


def fit_all(rows: Sequence[MeasuredStep], files: Sequence[Path], kind: str) -> dict[str, Any]:
    """One entry per card and engine, with provenance and errors. Mixtures of experts are predicted, not fitted."""
    entries: dict[str, Any] = {}
    for key in sorted({row.key for row in rows}):
        mine = [row for row in rows if row.key == key]
        dense = [row for row in mine if row.dense]
        if len(dense) < 4:
            continue
        efficiency = fit(dense)
        errors = relative_errors(mine, efficiency)
        entries[key] = {
            "kind": kind,
            "efficiency": {**asdict(efficiency), "origin": f"fitted on {len(dense)} dense rows of {key} ({kind})"},
            "error": summary(relative_errors(dense, efficiency)),
            "error_leave_one_out": summary(leave_one_out(dense)),
            "error_by_other_fits": {},
            "sources": {path.name: fingerprint(path) for path in files if path.name in {row.source for row in mine}},
            "rows": [
                {"case": row.case, "ms": row.ms, "error": round(float(error), 4)} for row, error in zip(mine, errors)
            ],
        }
    return entries


def cross_check(entries: dict[str, Any], rows: Sequence[MeasuredStep]) -> None:
    """Add to each entry how well the *other* engines' fits of its card predict its dense rows: rows never seen."""
    fits = {key: Efficiency(**entry["efficiency"]) for key, entry in entries.items()}
    for key, entry in entries.items():
        mine = [row for row in rows if row.key == key and row.dense]
        for other, efficiency in fits.items():
            if other != key and other.split("/")[0] == key.split("/")[0] and mine:
                entry["error_by_other_fits"][other] = summary(relative_errors(mine, efficiency))


def main(arguments: Sequence[str]) -> None:
    """``RESULTS_FOLDER [EARLIER_FOLDER]`` -> rewrite ``fitted.json`` beside this module."""
    entries: dict[str, Any] = {}
    all_rows: list[MeasuredStep] = []
    for folder, kind in zip(map(Path, arguments), ("result", "earlier measurement")):
        rows = read_results(folder)
        fresh = fit_all(rows, sorted(folder.rglob("*.json")), kind)
        all_rows += [row for row in rows if row.key not in entries]
        entries = {**fresh, **entries}
    cross_check(entries, all_rows)
    target = Path(__file__).with_name("fitted.json")
    target.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    for key, entry in entries.items():
        print(key, entry["kind"], entry["error"], "leave one out:", entry["error_leave_one_out"])


if __name__ == "__main__":
    main(sys.argv[1:])
