"""The parts of a report that are words and tables: warnings, trust, server, environment, definitions."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from sits.report.format import duration, figure_text, number, percent, point_label
from sits.report.plots import rounds_plot
from sits.spec.result import Result

_BOUND_LIMIT = 4


def workload_text(result: Result) -> str:
    """One line on what was sent."""
    load = result.workload
    if load.get("kind") == "synthetic":
        return f"prompts of {load.get('input_len')}, answers of {load.get('output_len')} tokens"
    if load.get("kind") == "dataset":
        return f"{load.get('prompts')} prompts of {load.get('file')}"
    return str(load.get("name") or load.get("kind") or "workload not described")


def alerts(result: Result) -> str:
    """Warnings in a box at the top; none when there are none."""
    if not result.warnings:
        return ""
    bad = " bad" if result.status in ("no_data", "invalid") else ""
    items = "".join(f"<li>{escape(text)}</li>" for text in result.warnings)
    return f'<div class="alert{bad}" role="note"><strong>Read this first</strong><ul>{items}</ul></div>'


def interval_note() -> str:
    """What the small figures are."""
    text = "Small figures: 95% interval, bootstrap over requests. A dash: nothing to measure."
    return f'<p class="note">{text}</p>'


def trust(result: Result) -> str:
    """Convergence, client health, arrivals and percentile bounds: may the figures be believed?"""
    rows = []
    for point in result.points:
        for entry in point.convergence:
            spark = rounds_plot(entry.rounds, entry.tolerance_relative)
            rows.append(
                f'<tr><th scope="row">{escape(point_label(point))}</th><td>{escape(entry.metric)}</td>'
                f'<td><span class="pill {entry.status}">{entry.status.replace("_", " ")}</span>'
                f"<small>{escape(entry.detail)}</small></td><td>{spark}</td></tr>"
            )
    parts = []
    if rows:
        head = "<thead><tr><th>Load</th><th>Watched</th><th>Verdict</th><th>Rounds</th></tr></thead>"
        parts.append(
            f'<div class="card scroll"><table class="trust">{head}<tbody>{"".join(rows)}</tbody></table></div>'
        )
    facts: list[tuple[str, str]] = []
    for point in result.points:
        label, client = point_label(point), point.client
        words = []
        if client.slip_p99_ms is not None:
            words.append(f"requests left at most {duration(max(0.0, client.slip_p99_ms))} late (p99)")
        if client.loop_lag_p99_ms is not None:
            words.append(f"loop lag p99 {duration(client.loop_lag_p99_ms)}")
        if client.cpu_share is not None:
            words.append(f"load generator {percent(client.cpu_share)} of a core")
        if client.advice:
            words.append(client.advice)
        if words:
            facts.append((f"Load generator, {label}", "; ".join(words)))
        if (arrivals := point.arrivals) is not None:
            verdict = {True: "as asked", False: "NOT as asked", None: "not judged"}[arrivals.ok]
            rate = f"{number(arrivals.achieved_rate)} of {number(arrivals.target_rate)} req/s"
            facts.append((f"Arrivals, {label}", f"{arrivals.process}: {rate}, {verdict}; {arrivals.detail}"))
        bounds = [
            f"{key} {figure_text(key, point.metrics[key])} is under {duration(point.metrics[key].upper_bound)}"
            for key in ("ttft.p99", "itl.p99", "e2e.p99", "tpot.p99")
            if key in point.metrics and point.metrics[key].upper_bound is not None
        ][:_BOUND_LIMIT]
        if bounds:
            facts.append((f"Upper bounds (99% confidence), {label}", "; ".join(bounds)))
    if facts:
        opened = "" if len(result.points) > 3 else " open"
        summary = "Load generator, arrivals, upper bounds"
        parts.append(f'<details class="card"{opened}><summary>{summary}</summary>{fact_table(facts)}</details>')
    return f"<h2>Can these figures be trusted?</h2>{''.join(parts)}" if parts else ""


def server_and_hardware(result: Result) -> str:
    """Gauges of the target at the end of each load level."""
    parts = []
    for point in result.points:
        if point.server:
            facts = [
                (name.replace("_", " "), _value(value))
                for name, value in sorted(point.server.items())
                if name != "timeline"
            ]
            parts.append(f"<details><summary>{escape(point_label(point))}</summary>{fact_table(facts)}</details>")
    return f'<h2>Inside the target</h2><div class="card">{"".join(parts)}</div>' if parts else ""


def environment(result: Result) -> str:
    """Machine, software, model and command: what it takes to run this again."""
    environment, hardware = result.environment, result.environment.hardware
    machine: list[tuple[str, str]] = [(name.replace("_", " "), _value(v)) for name, v in hardware.items() if v]
    machine += [("os", environment.os)] if environment.os else []
    if environment.container is not None:
        machine.append(("container", "yes" if environment.container else "no"))
    software = [(name, version) for name, version in environment.software.items()]
    if environment.git_revision:
        software.append(("SITS revision", environment.git_revision))
    model = [(name.replace("_", " "), _value(value)) for name, value in result.target.card.items() if value]
    run = [
        ("run", result.run_id),
        ("seed", str(result.seed)),
        ("workload", _value(result.workload)),
        ("warm-up", _value(result.warmup)),
        ("objectives", _value(result.slo) if result.slo else "none"),
    ]
    cards = "".join(
        f'<div class="card"><h3>{title}</h3>{fact_table(rows)}</div>'
        for title, rows in (("Machine", machine), ("Software", software), ("Model", model), ("Run", run))
        if rows
    )
    command = " ".join(_quoted(word) for word in result.command)
    again = f'<div class="card"><h3>Command</h3><pre>{escape(command)}</pre></div>' if command else ""
    return f'<h2>Environment</h2>{again}<div class="grid2">{cards}</div>'


def definitions(result: Result) -> str:
    """What every name means, as recorded in the result itself."""
    if not result.definitions:
        return ""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in result.definitions.items())
    inner = f'<summary>What each figure means</summary><dl class="defs">{rows}</dl>'
    return f'<h2>Definitions</h2><details class="card">{inner}</details>'


def fact_table(rows: list[tuple[str, str]]) -> str:
    """Name and value pairs."""
    body = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f'<table class="facts"><tbody>{body}</tbody></table>'


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.5g}"
    if isinstance(value, dict):
        return (
            ", ".join(f"{key} {_value(item)}" for key, item in value.items() if item not in (None, [], "")) or "none"
        )
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value) or "none"
    return str(value) if isinstance(value, (str, int)) else json.dumps(value)


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)
