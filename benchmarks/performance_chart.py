"""The picture in docs/performance.md: decode steps of SITS, the peer's earlier figures and the bars, as an SVG."""

from __future__ import annotations

from typing import Any

from sits.report.svg import Chart

ROW, GROUP_GAP = 34, 26
GROUPS = {
    "llama3-70b/int4-g32/": "Llama-3-70B INT4 g32",
    "llama3-70b/fp8/": "Llama-3-70B FP8",
    "llama3-8b/int4-g32/": "Llama-3-8B INT4 g32",
    "llama3-8b/bfloat16/": "Llama-3-8B BF16",
}
STYLE = """
svg{background:#fff;font:12px system-ui,sans-serif}
text{fill:#333}.inside{fill:#fff}.axis{font-weight:600}.note{fill:#777}
.grid{stroke:#e4e4e4}.base{stroke:#999}.ours{fill:#1f6feb}.peer{fill:#b8bec6}.met{stroke:#1a7f37}.missed{stroke:#cf222e}
.met,.missed{stroke-width:2.5}
@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#d0d7de}.inside{fill:#0d1117}.note{fill:#8b949e}.grid{stroke:#21262d}
.base{stroke:#6e7681}.ours{fill:#58a6ff}.peer{fill:#6e7681}.met{stroke:#3fb950}.missed{stroke:#f85149}}
"""


def decode_rows(rows: dict[str, dict[str, Any]]) -> dict[str, list[tuple[str, str, float]]]:
    """Group title -> (case, label, milliseconds), by batch."""
    found: dict[str, list[tuple[str, str, float]]] = {}
    for start, title in GROUPS.items():
        cases = [case for case in rows if case.startswith(start + "b") and rows[case]["unit"] == "ms"]
        for case in sorted(cases, key=lambda name: int(name[len(start) + 1 :].split("/")[0])):
            batch, context = case[len(start) + 1 :].split("/ctx")
            found.setdefault(title, []).append((case, f"batch {batch}, context {context}", rows[case]["ours"]))
    return found


def draw(
    rows: dict[str, dict[str, Any]], earlier: dict[str, tuple[float, str]], bars: dict[str, dict[str, float]]
) -> str:
    """The SVG's text: a thick bar for SITS, a thin one for the peer, a stroke for what the issue asks."""
    groups = decode_rows(rows)
    lines = sum(len(entries) for entries in groups.values())
    height = 84 + lines * ROW + len(groups) * GROUP_GAP
    chart = Chart(860, height, "Milliseconds of a decode step on one H200", left=190, right=60, top=44)
    peers = {case: earlier.get(case.replace("/bfloat16/", "/bf16/")) for case in rows}
    values = [value for entries in groups.values() for _, _, value in entries]
    values += [peer[0] for entries in groups.values() for case, _, _ in entries if (peer := peers[case])]
    x = chart.x_scale(min(values) / 1.5, max(values) * 1.1, log=True)
    for value in x.ticks(9):
        chart.add(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="36" y2="{chart.plot_bottom}"/>')
    y = float(chart.top)
    for title, entries in groups.items():
        y += GROUP_GAP
        chart.text(12, y - 8, title, kind="axis")
        for case, label, value in entries:
            chart.text(chart.left - 8, y + 15, label, "end")
            peer, limit = peers[case], bars.get(case, {}).get("bar")
            chart.rect(chart.left, y + 3, x(value) - chart.left, 13, "ours")
            chart.text(chart.left + 5, y + 14, f"{value:.4g}", kind="inside")
            if peer:
                chart.rect(chart.left, y + 18, x(peer[0]) - chart.left, 7, "peer")
                chart.text(x(peer[0]) + 5, y + 26, f"{peer[0]:.4g}", kind="note")
            if limit:
                verdict = "met" if value <= limit else "missed"
                at = f'x1="{x(limit):.1f}" x2="{x(limit):.1f}" y1="{y:.1f}" y2="{y + 28:.1f}"'
                chart.add(f'<line class="{verdict}" {at}/>')
            y += ROW
    chart.x_axis(x, x.ticks(9), lambda tick: f"{tick:g}", "milliseconds of a decode step (log), one H200")
    chart.text(
        12, 20, "SITS (blue), vLLM 0.24 in an earlier session (grey), the project's bar: green met, red missed"
    )
    svg = chart.render("wide").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return svg.replace(">", f"><style>{STYLE}</style>", 1) + "\n"
