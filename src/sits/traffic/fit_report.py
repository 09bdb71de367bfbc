"""The table of prediction errors for the docs, from the fits that ship with the package.

``python -m sits.traffic.fit_report docs/explain.md`` rewrites the part between the two markers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sits.errors import InputError
from sits.traffic.fitted import entries

BEGIN, END = "<!-- prediction-errors: generated -->", "<!-- /prediction-errors -->"


def error_tables(table: Mapping[str, Any]) -> str:
    """Markdown: one summary line per card and engine, then predicted against measured of every row."""
    if not table:
        return "Nothing has been fitted yet.\n"
    lines = [
        "| card / engine | from | dense rows | median | worst | median, row left out | worst, row left out |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, entry in table.items():
        seen, unseen = entry["error"], entry["error_leave_one_out"]
        lines.append(
            f"| {key} | {entry['kind']} | {seen['rows']} | {seen['median']:.1%} | {seen['worst']:.1%} "
            f"| {unseen['median']:.1%} | {unseen['worst']:.1%} |"
        )
    crossed = [(key, other, e) for key, entry in table.items() for other, e in entry["error_by_other_fits"].items()]
    if crossed:
        lines += ["", "Rows of one engine predicted by the fit of another, which never saw them:", ""]
        lines += ["| rows of | fit of | rows | median | worst |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {k} | {o} | {e['rows']} | {e['median']:.1%} | {e['worst']:.1%} |" for k, o, e in crossed]
    for key, entry in table.items():
        sources = ", ".join(f"`{name}` ({digest})" for name, digest in entry["sources"].items())
        lines += ["", f"**{key}** ({entry['kind']}; {sources})", "", "| case | measured ms | predicted ms | error |"]
        lines.append("| --- | --- | --- | --- |")
        for row in entry["rows"]:
            predicted = row["ms"] * (1 + row["error"])
            lines.append(f"| {row['case']} | {row['ms']:.2f} | {predicted:.2f} | {row['error']:+.1%} |")
    return "\n".join(lines) + "\n"


def with_tables(document: str, table: Mapping[str, Any]) -> str:
    """The document with the part between the markers replaced. Raises ``InputError`` without markers."""
    if BEGIN not in document or END not in document:
        raise InputError(f"the document lacks the markers {BEGIN} and {END}")
    head, rest = document.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{error_tables(table)}{END}{rest.split(END, 1)[1]}"


def main(arguments: Sequence[str]) -> None:
    path = Path(arguments[0])
    path.write_text(with_tables(path.read_text(encoding="utf-8"), entries()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
