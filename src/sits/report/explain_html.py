"""``sits explain`` as an HTML fragment with inline SVG: waterfall and roofline. Knows only plain dictionaries.

``render_fragment`` can be put into any page (the bench report does); ``render_page`` is a page of its own. No script,
no outside resource; colours work on light and dark grounds.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

_STYLE = """
.sits-explain{font:14px/1.5 system-ui,sans-serif;max-width:980px}
.sits-explain table{border-collapse:collapse;width:100%;margin:.6em 0}
.sits-explain th,.sits-explain td{text-align:right;padding:.2em .6em;border-bottom:1px solid #8884}
.sits-explain th:first-child,.sits-explain td:first-child,.sits-explain th.text,.sits-explain td.text{text-align:left}
.sits-explain .first{border-left:4px solid #c2410c;padding:.4em .8em;margin:1em 0;background:#c2410c14}
.sits-explain .predicted{border-left:4px solid #2563eb;padding:.2em .8em;background:#2563eb14}
.sits-explain svg{width:100%;height:auto} .sits-explain svg text{fill:currentColor;font-size:12px}
""".strip()
_COLOURS = {"limit": "#2563eb", "gap": "#ea580c"}


def _e(value: Any) -> str:
    return html.escape(str(value))


def render_page(explanation: Mapping[str, Any]) -> str:
    """A self-contained page."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>sits explain: {_e(explanation['subject'])}</title>"
        f'<body style="margin:2em auto;max-width:1000px;padding:0 1em">{render_fragment(explanation)}</body></html>'
    )


def render_fragment(explanation: Mapping[str, Any]) -> str:
    """One ``<section>`` with its own scoped style."""
    step = explanation["step"]
    head = f"<h2>Where the time goes: {_e(explanation['subject'])}</h2>"
    if explanation["kind"] == "predicted":
        head += '<p class="predicted">Predicted from shapes and card figures, not measured.</p>'
    if step:
        head += (
            f"<p>batch {_e(step['batch'])}, context {_e(step['context'])}, {_e(step['weights'])} weights, "
            f"{_e(step['kv'])} KV, {_e(step['devices'])} device(s), {_e(explanation['card'])}</p>"
        )
    parts = [f"<style>{_STYLE}</style>", head]
    if explanation["findings"]:
        first = explanation["findings"][0]
        parts.append(
            f'<div class="first"><strong>{_e(first["title"])}</strong><br>{_e(first["evidence"])}'
            + (f"<br>Do: {_e(first['advice'])}" if first["advice"] else "")
            + "</div>"
        )
    if explanation["waterfall"]:
        parts += [waterfall_svg(explanation["waterfall"]), _waterfall_table(explanation["waterfall"])]
    if explanation["roofline"]:
        parts += ["<h3>Roofline</h3>", roofline_svg(explanation["roofline"])]
    parts += [_tail(tail) for tail in explanation["tails"]]
    parts.append(_switch_table(explanation["switches"]))
    parts.append(_capacity_table(explanation["capacity"]))
    notes = [*explanation["notes"], *([f"prediction: {explanation['basis']}"] if explanation["basis"] else [])]
    if notes:
        parts.append("<ul>" + "".join(f"<li>{_e(note)}</li>" for note in notes) + "</ul>")
    return '<section class="sits-explain">' + "".join(part for part in parts if part) + "</section>"


def _value(piece: Mapping[str, Any]) -> float:
    return float(piece["measured_ms"] if piece["measured_ms"] is not None else piece["predicted_ms"] or 0.0)


def waterfall_svg(waterfall: Mapping[str, Any]) -> str:
    """One bar per piece, each starting where the last ended; its roofline part is blue, the gap orange."""
    pieces = [piece for piece in waterfall["pieces"] if _value(piece) > 0]
    total = sum(_value(piece) for piece in pieces) or 1.0
    left, width, row = 300.0, 560.0, 24
    height = row * (len(pieces) + 1) + 10
    out = [f'<svg viewBox="0 0 960 {height}" role="img" aria-label="waterfall of one output token">']
    at = 0.0
    for index, piece in enumerate(pieces):
        value = _value(piece)
        limit = min(value, float(piece["limit_ms"]))
        x, y = left + width * at / total, 6 + row * index
        blue, orange = width * limit / total, width * (value - limit) / total
        out.append(f'<text x="0" y="{y + 13}">{_e(piece["label"])}</text>')
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{blue:.1f}" height="16" fill="{_COLOURS["limit"]}"/>')
        out.append(
            f'<rect x="{x + blue:.1f}" y="{y}" width="{max(orange, 0.5):.1f}" height="16" fill="{_COLOURS["gap"]}"/>'
        )
        out.append(f'<text x="{min(x + blue + orange + 4, 890):.1f}" y="{y + 13}">{value:.3f}</text>')
        at += value
    y = 6 + row * len(pieces)
    out.append(
        f'<text x="0" y="{y + 13}">total {waterfall["total_ms"]:.3f} ms (blue: the roofline of that piece)</text>'
    )
    return "".join(out) + "</svg>"


def _waterfall_table(waterfall: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{_e(p['label'])}</td><td>{_ms(p['measured_ms'])}</td><td>{_ms(p['predicted_ms'])}</td>"
        f"<td>{_ms(p['limit_ms'])}</td><td>{_ms(p['gap_ms'])}</td><td class=text>{_e(p['how'])}</td></tr>"
        for p in waterfall["pieces"]
    )
    return (
        "<table><tr><th>piece, ms per output token</th><th>measured</th><th>predicted</th><th>limit</th><th>gap</th>"
        f"<th class=text>how</th></tr>{rows}</table>"
    )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def roofline_svg(points: Sequence[Mapping[str, Any]]) -> str:
    """Log-log plot: a hollow dot for each operator's limit, a full one for what is predicted or reached."""
    xs = [math.log10(p["intensity"]) for p in points]
    ys = [math.log10(max(p[key], 1e-9)) for p in points for key in ("limit_tflops", "predicted_tflops")]
    x0, x1 = math.floor(min(xs)), math.ceil(max(xs) + 1e-9)
    y0, y1 = math.floor(min(ys)), math.ceil(max(ys) + 1e-9)
    x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)

    def px(value: float) -> float:
        return 70 + 560 * (math.log10(value) - x0) / (x1 - x0)

    def py(value: float) -> float:
        return 290 - 260 * (math.log10(max(value, 1e-9)) - y0) / (y1 - y0)

    out = ['<svg viewBox="0 0 960 330" role="img" aria-label="roofline">']
    for power in range(x0, x1 + 1):
        out.append(f'<line x1="{px(10**power):.1f}" x2="{px(10**power):.1f}" y1="30" y2="290" stroke="#8884"/>')
        out.append(f'<text x="{px(10**power) - 10:.1f}" y="305">1e{power}</text>')
    for power in range(y0, y1 + 1):
        out.append(f'<line x1="70" x2="630" y1="{py(10**power):.1f}" y2="{py(10**power):.1f}" stroke="#8884"/>')
        out.append(f'<text x="20" y="{py(10**power) + 4:.1f}">1e{power}</text>')
    ordered = sorted(points, key=lambda p: p["intensity"])
    line = " ".join(f"{px(p['intensity']):.1f},{py(p['limit_tflops']):.1f}" for p in ordered)
    out.append(f'<polyline points="{line}" fill="none" stroke="{_COLOURS["limit"]}" stroke-dasharray="4 3"/>')
    for index, point in enumerate(sorted(points, key=lambda p: -p["share"])):
        x = px(point["intensity"])
        out.append(f'<circle cx="{x:.1f}" cy="{py(point["limit_tflops"]):.1f}" r="4" fill="none" '
                   f'stroke="{_COLOURS["limit"]}"/>')  # fmt: skip
        out.append(f'<circle cx="{x:.1f}" cy="{py(point["predicted_tflops"]):.1f}" r="4" fill="{_COLOURS["gap"]}">'
                   f"<title>{_e(point['operator'])}</title></circle>")  # fmt: skip
        out.append(
            f'<text x="650" y="{44 + 20 * index}">{_e(point["operator"])}: {point["share"]:.0%} of the step, '
            f"{point['intensity']:.3g} FLOP/B</text>"
        )
    out.append('<text x="240" y="325">FLOP per byte</text><text x="10" y="18">TFLOP/s</text>')
    return "".join(out) + "</svg>"


def _tail(tail: Mapping[str, Any]) -> str:
    name = {"ttft": "Time to first token", "itl": "Time between tokens"}.get(tail["metric"], tail["metric"])
    rows = "".join(
        f"<tr><td>{_e(row['request_id'])}</td><td>{row['value_ms']:.2f}</td><td class=text>{_e(row['phase'])}</td>"
        f"<td class=text>{_e(row['cause'])}</td></tr>"
        for row in tail["slow"]
    )
    return (
        f"<h3>{name}: p50 {tail['p50_ms']:.2f} ms, p99 {tail['p99_ms']:.2f} ms</h3>"
        f"<table><tr><th>slowest</th><th>ms</th><th class=text>phase</th><th class=text>cause</th></tr>{rows}</table>"
    )


def _switch_table(switches: Sequence[Mapping[str, Any]]) -> str:
    if not switches:
        return ""
    rows = "".join(
        f"<tr><td>{_e(s['what'])}</td><td>{s['before_ms']:.2f}</td><td>{s['after_ms']:.2f}</td>"
        f"<td>{_ms(s['achieved_ms'])}</td><td>{s['gain']:+.0%}</td><td>{s['throughput_gain']:+.0%}</td>"
        f"<td class=text>{_e(s['how'])}; {_e(s['price'])}</td></tr>"
        for s in switches
    )
    return (
        "<h3>Switches</h3><table><tr><th>change</th><th>ms now</th><th>ms predicted</th><th>ms achieved</th>"
        f"<th>won</th><th>tok/s</th><th class=text>how, price</th></tr>{rows}</table>"
    )


def _capacity_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{_e(r['precision'])}</td><td>{r['devices']}</td><td>{r['ttft_ms']:.0f}</td><td>{r['itl_ms']:.2f}</td>"
        f"<td>{r['batch']}</td><td>{r['tokens_per_s']:.0f}</td>"
        f"<td class=text>{'meets' if r['meets'] else 'no'}: {_e(r['why'])}</td></tr>"
        for r in rows
    )
    return (
        "<h3>Would it meet the objective (predicted)</h3><table><tr><th>precision</th><th>GPUs</th><th>TTFT ms</th>"
        f"<th>ITL ms</th><th>batch</th><th>tok/s</th><th class=text>verdict</th></tr>{body}</table>"
    )
