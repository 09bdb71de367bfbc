"""Writes the table of results/quality.json into docs/quantization.md, between its markers.

python benchmarks/quality_table.py
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "quality.json"
PAGE = ROOT / "docs" / "quantization.md"
BEGIN, END = "<!-- quality: written by benchmarks/quality_table.py -->", "<!-- end of quality -->"


def table(result: dict) -> str:
    """Markdown of the result."""
    texts = list(result["texts"])
    head = ["case", "bits/weight", *(f"{text}: perplexity (KL)" for text in texts), "top-1 agreement", "answers"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    total = len(result["questions"])
    for row in result["rows"]:
        figures = [row["texts"][text] for text in texts]
        agreement = sum(f["top1_agreement"] * f["tokens"] for f in figures) / sum(f["tokens"] for f in figures)
        bits = {"float32": 32}.get(row["case"], row["bits_per_weight"])
        cells = [row["case"], f"{bits:g}"]
        cells += [f"{figure['perplexity']:.2f} ({figure['kl']:.4f})" for figure in figures]
        lines.append("| " + " | ".join([*cells, f"{agreement:.1%}", f"{row['answers_right']}/{total}"]) + " |")
    tokens = " + ".join(f"{fact['tokens']} of {name}" for name, fact in result["texts"].items())
    lines += ["", f"{result['model']}, tokens: {tokens}; torch {result['versions']['torch']}, {result['date'][:10]}."]
    return "\n".join(lines)


def render(page: str, result: dict) -> str:
    """The page with its table replaced."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(result)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text())), encoding="utf-8")
    print(f"written: {PAGE}")
