"""``--init``: a commented configuration for what is there: a result, else an endpoint, else the default model."""

from __future__ import annotations

import json
import math
import os
import urllib.request
from pathlib import Path

from sits.errors import InputError
from sits.report.loaded import LoadedResult
from sits.spec.intervals import least_samples
from sits.spec.result import LoadPoint
from sits.validate.config import base_folder
from sits.validate.context import describe_point, figure_of, usable_bounds
from sits.validate.files import write_atomic

_PLACES = ("result.json", "out", "demo", "results", "bench", ".")
# Where engines listen when nobody says otherwise: vLLM and ours, llama.cpp, SGLang, Ollama.
_PORTS = (8000, 8080, 30000, 11434)
_HEADROOM = 1.2


def write_initial(config: Path, results: list[Path]) -> str:
    """Write the configuration and return what to tell the user. Raises ``InputError`` rather than overwrite."""
    if config.exists():
        raise InputError(f"{config} exists already", "Delete it first, or name another file with --config")
    base = base_folder(config)
    found = results or _find_results(base)
    if found:
        loaded = [LoadedResult(path) for path in found]
        if not loaded[0].result.points:
            raise InputError(f"{found[0]} measured nothing", "Run the benchmark again, or name another with --result")
        text = _for_result(loaded[0], _shown(found[0], base))
        about = f"from {found[0]}: bounds are {_HEADROOM - 1:.0%} above what was measured there"
    else:
        endpoint = _find_endpoint()
        text = _for_nothing(endpoint)
        about = f"for the endpoint {endpoint}" if endpoint else "for the default model; no result was found here"
    write_atomic(config, text)
    then = "sits-validate" if found else "sits-validate --run"
    return f"wrote {config} {about}\nNext: look through the bounds, then run {then}\n"


def _shown(path: Path, base: Path) -> str:
    try:
        return path.resolve().relative_to(base.resolve()).as_posix()
    except ValueError:
        return path.resolve().as_posix()


def _find_results(base: Path) -> list[Path]:
    for place in _PLACES:
        path = base / place
        if path.is_file():
            return [path]
        if path.is_dir():
            files = [path / "result.json"] if (path / "result.json").is_file() else sorted(path.glob("*/result.json"))
            if files:
                return [max(files, key=lambda file: file.stat().st_mtime)]
    return []


def _find_endpoint() -> str | None:
    """An OpenAI-compatible endpoint: the one the environment names, else one on this machine that answers at once."""
    named = os.environ.get("OPENAI_BASE_URL")
    if named:
        return named
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for port in _PORTS:
        url = f"http://127.0.0.1:{port}/v1"
        try:
            with opener.open(f"{url}/models", timeout=0.3) as reply:
                data = json.loads(reply.read(100_000))
        except (OSError, ValueError):
            continue
        if isinstance(data, dict) and "data" in data:
            return url
    return None


def _round_up(value: float) -> float:
    """Two significant digits, upwards."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(value / unit - 1e-9) * unit, 10)


_HEAD = """\
# Gate of this repository. Check it with: sits-validate --check-config
# Rules: sits-validate --list-rules; one of them in depth: sits-validate --explain ttft
version: 1
"""
_TAIL = """
# Compare with a stored baseline: uncomment, and add the rule 'regression' below 'rules:'.
# baseline: baselines/main
#   regression: {tolerance: 3%}     # reported only when the confidence interval excludes 3%

# Accept a violation for a while. After the day it is a violation itself.
# waivers:
#   - {rule: ttft, owner: you@example.com, reason: tracked in issue 12, expires: 2027-01-31}

# Other bounds elsewhere: sits-validate --profile staging
# profiles:
#   staging:
#     rules: {ttft: {p50: 2 s}}
"""


def _for_result(loaded: LoadedResult, shown: str) -> str:
    result = loaded.result
    lines = [f"result: {json.dumps(shown)}", "", "rules:"]
    for point in result.points[:1] if len(result.points) == 1 else result.points[-1:]:
        lines += _latency_lines(point)
        lines += _other_lines(point)
        lines.insert(1, f"# Measured: {result.target.name} at {describe_point(point)}, {result.created}")
        if len(result.points) > 1:
            note = (
                f"# The result has {len(result.points)} load points; these bounds fit the last. Others: sits-validate"
            )
            lines.insert(2, note + " --explain ttft")
    lines.append("  # Is the run itself sound?")
    fewest = min((point.requests.get("ok", 0) for point in result.points), default=100)
    lines.append(f"  minimum-run: {{requests: {max(1, int(fewest * 0.8))}}}")
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def _latency_lines(point: LoadPoint) -> list[str]:
    lines = []
    requests = point.requests.get("ok", 0)
    where = f", points: {{concurrency: {point.concurrency:g}}}" if point.concurrency is not None else ""
    for rule, series in (("ttft", "ttft"), ("itl", "itl"), ("e2e", "e2e")):
        bounds = []
        # Never a percentile the sample cannot prove: it would be inconclusive in every run.
        tail = next((q for q in (99, 95, 90) if requests >= least_samples(q / 100, 0.95) * 1.2), None)
        for q in (50, tail):
            figure = figure_of(point, f"{series}.p{q}")[0] if q is not None else None
            if figure is not None and figure.value:
                interval = usable_bounds(figure)
                high = max(interval[1] if interval else figure.value, figure.value)
                bounds.append(f"p{q}: {_round_up(high * _HEADROOM):g} ms")
        if bounds:
            lines.append(f"  {rule}: {{{', '.join(bounds)}{where}}}")
    if lines and requests < least_samples(0.99, 0.95) * 1.2:
        lines.insert(
            0, f"  # {requests} requests prove no p99; with {math.ceil(least_samples(0.99, 0.95) * 1.2)} they can"
        )
    return lines


def _other_lines(point: LoadPoint) -> list[str]:
    # Fewer requests cannot prove the bound: it would be undecided in every run, as at the smaller load points.
    decide = "" if point.requests.get("ok", 0) >= 300 else ", decide: estimate"
    where = f", points: {{concurrency: {point.concurrency:g}}}" if point.concurrency is not None else ""
    lines = [f"  error-rate: {{max: 1%{decide}{where}}}"]
    figure, _ = figure_of(point, "throughput.output")
    if figure is not None and figure.value:
        lines.append(f"  throughput: {{min_output: {_round_up(figure.value / _HEADROOM / 1.1):g}{where}}}  # tok/s")
    return lines


def _for_nothing(endpoint: str | None) -> str:
    target = f"  endpoint: {json.dumps(endpoint)}" if endpoint else "  model: smollm2-135m       # or  endpoint: URL"
    return (
        _HEAD
        + f"""
# What sits-validate --run measures: the options of sits bench, by their long names.
bench:
{target}
  concurrency: 4
  input-len: 64
  output-len: 32
  requests: 100

rules:
  # Placeholders: run once, look at the figures, then write what you promise.
  ttft: {{p50: 2 s, p95: 5 s}}
  itl: {{p50: 200 ms, p95: 500 ms}}
  error-rate: {{max: 0, decide: estimate}}
  minimum-run: {{requests: 100}}
"""
        + _TAIL
    )
