"""Report formats by name. A writer is a pure function from a report to text."""

from __future__ import annotations

from collections.abc import Callable

from sits.validate.report import Report

Writer = Callable[[Report], str]

FORMATS = ("text", "json", "junit", "sarif", "codequality", "markdown", "github")
_BY_SUFFIX = {
    ".sarif": "sarif", ".sarif.json": "sarif", ".json": "json", ".xml": "junit", ".md": "markdown", ".txt": "text",
}  # fmt: skip


def writer(name: str) -> Writer:
    """The writer of a format in ``FORMATS``. Raises ``KeyError`` for another name."""
    if name in ("text", "markdown", "github"):
        from sits.validate.writers import people

        return {"text": people.text, "markdown": people.markdown, "github": people.github}[name]
    if name == "junit":
        from sits.validate.writers.junit import junit

        return junit
    from sits.validate.writers import machines

    return {"json": machines.to_json, "sarif": machines.sarif, "codequality": machines.code_quality}[name]


def format_for(name: str) -> str | None:
    """The format a file name asks for by its ending; ``None`` when it does not say."""
    for suffix in sorted(_BY_SUFFIX, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return _BY_SUFFIX[suffix]
    return None
