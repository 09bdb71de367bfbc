"""``sits explain`` as text. Knows only the plain dictionary of an explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BAR = 24


def render_text(explanation: Mapping[str, Any]) -> str:
    """A page for a terminal: what costs most first, then the waterfall, the percentiles, the switches."""
    parts = [_head(explanation)]
    for finding in explanation["findings"][:1]:
        parts.append(f"First: {finding['title']}\n  {finding['evidence']}")
        if finding["advice"]:
            parts[-1] += f"\n  do: {finding['advice']}"
    if explanation["waterfall"]:
        parts.append(_waterfall(explanation["waterfall"], explanation["kind"]))
    if len(explanation["findings"]) > 1 and explanation["kind"] == "measured":
        lines = ["Causes, by cost per output token"]
        for finding in explanation["findings"]:
            lines.append(f"  {finding['cost_ms']:9.3f} ms  {finding['title']}")
            lines.append(f"                {finding['evidence']}")
        parts.append("\n".join(lines))
    parts += [_tail(tail) for tail in explanation["tails"]]
    if explanation["scorecard"]:
        parts.append(_scorecard(explanation["scorecard"]))
    if explanation["ratios"]:
        parts.append(_ratios(explanation["ratios"]))
    if explanation["switches"]:
        parts.append(_switches(explanation["switches"]))
    if explanation["capacity"]:
        parts.append(_capacity(explanation["capacity"]))
    notes = list(explanation["notes"])
    if explanation["basis"]:
        notes.append(f"prediction: {explanation['basis']}")
    if notes:
        parts.append("\n".join(f"note: {note}" for note in notes))
    return "\n\n".join(parts)


def _head(explanation: Mapping[str, Any]) -> str:
    step = explanation["step"]
    words = [explanation["subject"]]
    if step:
        words.append(
            f"batch {step['batch']}, context {step['context']}, {step['weights']} weights, {step['kv']} KV"
            + (f", {step['devices']} devices" if step["devices"] > 1 else "")
        )
    words.append("PREDICTED, not measured" if explanation["kind"] == "predicted" else "measured")
    return f"{words[0]}: " + " | ".join(words[1:])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _waterfall(waterfall: Mapping[str, Any], kind: str) -> str:
    measured = kind == "measured"
    title = "One output token, ms" + (" (queueing shared among the tokens)" if measured else "")
    lines = [title, f"  {'':<50}{'measured':>10}{'predicted':>11}{'limit':>9}{'gap':>9}  how"]
    largest = max((_value(piece) for piece in waterfall["pieces"]), default=0.0) or 1.0
    for piece in waterfall["pieces"]:
        bar = "#" * round(_BAR * _value(piece) / largest)
        lines.append(
            f"  {piece['label'][:49]:<50}{_number(piece['measured_ms']):>10}{_number(piece['predicted_ms']):>11}"
            f"{_number(piece['limit_ms']):>9}{piece['gap_ms']:>9.3f}  {piece['how']:<15}{bar}"
        )
    total = waterfall["total_ms"]
    lines.append(
        f"  {'total':<50}{_number(total if measured else None):>10}{_number(waterfall['predicted_ms']):>11}"
        f"{_number(waterfall['limit_ms']):>9}"
    )
    if measured:
        lines.append(f"  the pieces sum to the measured time within {waterfall['residual_share']:.2%}")
    return "\n".join(lines)


def _value(piece: Mapping[str, Any]) -> float:
    return float(piece["measured_ms"] if piece["measured_ms"] is not None else piece["predicted_ms"] or 0.0)


def _tail(tail: Mapping[str, Any]) -> str:
    name = {"ttft": "Time to first token", "itl": "Time between tokens"}.get(tail["metric"], tail["metric"])
    lines = [f"{name}: p50 {tail['p50_ms']:.2f} ms, p99 {tail['p99_ms']:.2f} ms ({tail['count']} samples)"]
    if tail["shares"]:
        shares = ", ".join(f"{phase} {share:.0%}" for phase, share in list(tail["shares"].items())[:4])
        lines.append(f"  the slowest spent their time in: {shares}")
    for row in tail["slow"][:3]:
        lines.append(f"  {row['request_id']}: {row['value_ms']:.2f} ms, mostly {row['phase']}: {row['cause']}")
    return "\n".join(lines)


def _scorecard(board: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            "Predicted scorecard (limit = roofline without any overhead)",
            f"  time per token   {board['itl_ms']:9.2f} ms   limit {board['itl_limit_ms']:.2f}",
            f"  first token      {board['ttft_ms']:9.1f} ms   (nothing queued)",
            f"  throughput       {board['tokens_per_s']:9.0f} tok/s   limit {board['tokens_per_s_limit']:.0f}",
            f"  required traffic {board['required_gb_per_step']:9.2f} GB/step   "
            f"MABU required/peak {board['mabu_required']:.1%}, of achievable {board['required_of_achievable']:.1%}",
            f"  memory           {board['memory_gb']:9.1f} GB per device"
            + ("" if board["fits"] else "  DOES NOT FIT"),
        ]
    )


def _ratios(ratios: Mapping[str, Any]) -> str:
    lines = ["Memory traffic"]
    for name, figure in ratios.items():
        value = "not available" if figure["value"] is None else f"{figure['value']:.4g} {figure['unit']}"
        lines.append(f"  {name:<20}{value}" + (f" ({figure['reason']})" if figure["reason"] else ""))
    return "\n".join(lines)


def _switches(switches: Sequence[Mapping[str, Any]]) -> str:
    lines = ["Switches, by predicted gain"]
    for row in switches:
        gain = f"{row['gain']:+.0%} step time won" if row["gain"] > 0 else f"{-row['gain']:.0%} more step time"
        if row["throughput_gain"] > 0.02:
            gain += f", {row['throughput_gain']:+.0%} tok/s"
        after = f"{row['before_ms']:.2f} -> {row['after_ms']:.2f} ms"
        if row["achieved_ms"] is not None:
            after += f" predicted, {row['achieved_ms']:.2f} ms achieved"
        lines.append(f"  {row['what']:<44}{after:<24} {gain}  [{row['basis']}]")
        lines.append(f"      {row['how']}; price: {row['price']}")
    return "\n".join(lines)


def _capacity(rows: Sequence[Mapping[str, Any]]) -> str:
    best = rows[0]
    if best["meets"]:
        plural = "s" if best["devices"] > 1 else ""
        answer = (
            f"Yes (predicted): {best['precision']} on {best['devices']} device{plural}, "
            f"up to {best['batch']} sequences, {best['tokens_per_s']:.0f} tok/s"
        )
    else:
        answer = "No set-up of the table meets the objective (predicted)"
    lines = [answer, f"  {'precision':<11}{'GPUs':>5}{'TTFT ms':>10}{'ITL ms':>9}{'batch':>7}{'tok/s':>9}  verdict"]
    for row in rows:
        verdict = ("meets: " if row["meets"] else "no: ") + row["why"]
        lines.append(
            f"  {row['precision']:<11}{row['devices']:>5}{row['ttft_ms']:>10.0f}{row['itl_ms']:>9.2f}"
            f"{row['batch']:>7}{row['tokens_per_s']:>9.0f}  {verdict}"
        )
    return "\n".join(lines)
