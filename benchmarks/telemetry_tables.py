"""Writes the measured tables of docs/telemetry.md from benchmarks/results; run it after new results.

usage: python benchmarks/telemetry_tables.py [RESULTS_FOLDER] [DOCUMENT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- telemetry-results: generated -->", "<!-- /telemetry-results -->"


def tables(folder: Path) -> str:
    """Markdown of telemetry.json, traffic.json and explain_faults.json, as far as they exist."""
    parts = []
    for name, write in (("telemetry", _counter), ("traffic", _traffic), ("explain_faults", _faults)):
        path = folder / f"{name}.json"
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
            head = f"`{path.name}`: {document['card']}, driver {document['driver']}, {document['date'][:10]}"
            parts.append(head + "\n\n" + write(document["rows"]))
    return "\n".join(parts)


def _counter(rows: list[dict[str, Any]]) -> str:
    lines = ["| GPM against moved bytes | median error | worst | bar | windows |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        if row["unit"] == "relative error":
            kept = "" if row["within_bar"] else " (missed)"
            lines.append(
                f"| {row['case'].removeprefix('gpm/')} | {row['ours']:.2%}{kept} | {row['worst']:.2%} "
                f"| {row['bar']:.0%} | {row['windows']} |"
            )
    named = {row["case"]: row for row in rows}
    lines.append("")
    if (lag := named.get("gpm/lag")) and lag["ours"] is not None:
        lines.append(
            f"The counter is late by {lag['ours'] * 1e3:.0f} ms (median), {lag['worst'] * 1e3:.0f} ms at worst."
        )
    copy, share = named["sampler/copy-throughput"], named["sampler/share-of-a-core"]
    lines.append(
        f"With the sampler a copy ran at {copy['ours']:.0f} GB/s, without it at {copy['peer']:.0f}; the sampler used "
        f"{share['ours']:.2%} of a core (bar {share['bar']:.0%})."
    )
    return "\n".join(lines) + "\n"


def _traffic(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| decode, BF16 | required GB/s | observed GB/s | required / observed | MABU required |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        kept = "" if row["within_bar"] else " (bar: within 5%)"
        lines.append(
            f"| {row['case'].removeprefix('traffic/')} ({row['layers']} layers) | {row['required_gbps']:.0f} "
            f"| {row['observed_gbps']:.0f} | {row['ours']:.3f}{kept} | {row['mabu_required']:.1%} |"
        )
    return "\n".join(lines) + "\n"


def _faults(rows: list[dict[str, Any]]) -> str:
    lines = ["| planted on a GPU | named first | evidence |", "| --- | --- | --- |"]
    for row in rows:
        verdict = row["first"] + ("" if row["named_first"] else f" (expected {row['expected']})")
        lines.append(f"| {row['case'].removeprefix('explain/')} | {verdict} | {row['evidence']} |")
    return "\n".join(lines) + "\n"


def with_tables(document: str, folder: Path) -> str:
    """The document with the generated part replaced."""
    head, rest = document.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{tables(folder)}{END}{rest.split(END, 1)[1]}"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results"
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/telemetry.md"
    path.write_text(with_tables(path.read_text(encoding="utf-8"), folder), encoding="utf-8")


if __name__ == "__main__":
    main()
