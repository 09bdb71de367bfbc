"""Rules in words: ``--list-rules``, ``--explain``, and the pages under docs/rules (written by ``python -m
sits.validate.explain docs/rules``, and compared with the registry by a test)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sits.errors import InputError
from sits.validate.presets import PRESETS
from sits.validate.rules.model import Rule, all_rules, find_rule, iter_names
from sits.validate.schema import COMMON, config_schema
from sits.validate.schema_check import suggestion


def schema_text() -> str:
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def list_rules() -> str:
    """One line a rule: id, name, default severity, summary."""
    lines = []
    for rule in all_rules().values():
        always = " (always on)" if rule.default_on else ""
        lines.append(f"{rule.id}  {rule.name:<23} {rule.severity:<9} {rule.summary}{always}")
    return "\n".join(lines) + "\n"


def list_presets() -> str:
    width = max(len(name) for name in PRESETS)
    return "".join(f"{name:<{width}}  {summary}\n" for name, (summary, _) in PRESETS.items())


def explain(word: str) -> str:
    """The page of a rule as plain text. Raises ``InputError`` with the nearest rule for an unknown one."""
    rule = find_rule(word)
    if rule is None:
        raise InputError(f"there is no rule '{word}'", suggestion(word, list(iter_names())))
    lines = [line for line in page(rule).splitlines() if not line.startswith("```")]
    return (
        "\n".join(lines).replace("`", "").replace("# ", "", 1).replace("\n## ", "\n").replace("\n\n\n", "\n\n") + "\n"
    )


def page(rule: Rule) -> str:
    """The documentation page of a rule in Markdown."""
    always = "; always on, `false` turns it off" if rule.default_on else ""
    lines = [
        f"# {rule.id} {rule.name}",
        "",
        rule.summary,
        "",
        f"Default severity: {rule.severity}{always}. Needs: {rule.needs}.",
        "",
        "## Why",
        "",
        rule.why,
        "",
        "## Use",
        "",
        "```yaml",
        "rules:",
        f"  {rule.example}",
        "```",
        "",
    ]
    rows = [("p{1..99.9}", schema) for schema in rule.patterns.values()]
    rows += list(rule.parameters.items())
    for name, schema in rows:
        required = " Required." if name in rule.required else ""
        lines.append(f"- `{name}`: {_describe(schema)}{required}")
    lines.append(f"- Common to all rules: {', '.join(f'`{name}`' for name in COMMON)} (see docs/gate.md).")
    lines += [
        "",
        "## How sure it is",
        "",
        rule.statistics or "It reads a statement of the result; nothing is estimated.",
    ]
    lines += ["", "## No data", "", _no_data(rule), "", "## What to do", "", rule.fix]
    return "\n".join(lines) + "\n"


def _describe(schema: dict[str, Any]) -> str:
    text = schema.get("description", "").rstrip(".")
    if "enum" in schema and ":" not in text:
        text += f" ({', '.join(map(str, schema['enum']))})"
    return text + "."


def _no_data(rule: Rule) -> str:
    if rule.no_data == "skip":
        return "Without data the rule is skipped."
    if rule.no_data == "warn":
        return "Without data it is a warning (exit 2), unless `no_data` says otherwise."
    if rule.severity == "critical":
        return "Without data it could not be judged (exit 3), unless `no_data` says otherwise."
    return "Without data it is a warning (exit 2), unless `no_data` says otherwise."


def index() -> str:
    """The table of all rules."""
    lines = ["# Rules of sits-validate", "", "| id | name | default | what it checks |", "| --- | --- | --- | --- |"]
    for rule in all_rules().values():
        always = ", always on" if rule.default_on else ""
        lines.append(f"| [{rule.id}]({rule.id}.md) | `{rule.name}` | {rule.severity}{always} | {rule.summary} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name to content of everything under docs/rules."""
    return {"README.md": index(), **{f"{rule.id}.md": page(rule) for rule in all_rules().values()}}


def main(folder: str) -> None:
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.md"):
        old.unlink()
    for name, content in pages().items():
        (target / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
