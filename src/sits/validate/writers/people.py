"""Reports for people: a terminal, a merge request, and GitHub's workflow commands."""

from __future__ import annotations

from sits.validate.report import Report
from sits.validate.rules.model import Finding
from sits.validate.writers.machines import place

_ORDER = ("critical", "unjudged", "warn", "waived", "pass", "skipped")
_WORDS = {
    "critical": "FAIL",
    "unjudged": "NO VERDICT",
    "warn": "WARN",
    "waived": "WAIVED",
    "pass": "ok",
    "skipped": "skipped",
}


def ordered(report: Report) -> list[Finding]:
    """Worst first; within that in the order of the rules."""
    return sorted(report.findings, key=lambda finding: _ORDER.index(finding.treated_as))


def word(finding: Finding) -> str:
    """What a finding is, in a word."""
    if finding.outcome.value == "inconclusive" and finding.treated_as in ("warn", "critical", "unjudged"):
        return f"{_WORDS[finding.treated_as]} (undecided)"
    return _WORDS[finding.treated_as]


def text(report: Report) -> str:
    """Plain lines for a terminal or a job log."""
    lines: list[str] = []
    for problem in report.problems:
        lines.append(f"error: {problem.mark}: {problem.message}")
        if problem.hint:
            lines.append(f"       {problem.hint}")
    groups: dict[str, list[Finding]] = {}
    for finding in ordered(report):
        groups.setdefault(finding.treated_as, []).append(finding)
    for treated_as, findings in groups.items():
        if treated_as == "skipped":
            continue
        for finding in findings:
            scope = f" at {finding.scope}" if finding.scope else ""
            if treated_as == "pass":
                lines.append(f"{word(finding):<12} {finding.rule_id} {finding.rule_name}{scope}: {finding.message}")
                continue
            lines.append(f"{word(finding):<12} {finding.rule_id} {finding.rule_name}{scope}")
            lines.append(f"{'':<12} {finding.message}")
            if finding.waived_by:
                lines.append(f"{'':<12} {finding.waived_by}")
            if treated_as in ("critical", "unjudged", "warn"):
                if finding.hint:
                    lines.append(f"{'':<12} {finding.hint}")
                file, line, _ = place(report, finding.mark)
                lines.append(f"{'':<12} {file}:{line}, explained by: sits-validate --explain {finding.rule_id}")
    if lines:
        lines.append("")
    skipped = len(groups.get("skipped", []))
    tail = f" ({skipped} not applicable)" if skipped else ""
    lines.append(f"{report.title}: {report.reason}{tail} [exit {report.exit_code}]")
    return "\n".join(lines) + "\n"


_SIGNS = {"critical": "❌", "unjudged": "❓", "warn": "⚠️", "waived": "🤝", "pass": "✅", "skipped": "▫️"}
_TITLE_SIGNS = {"PASS": "✅", "CRITICAL": "❌", "WARNING": "⚠️", "COULD NOT JUDGE": "❓"}


def _cell(value: str) -> str:
    return value.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("`", "'")


def markdown(report: Report) -> str:
    """For a merge-request comment or a step summary."""
    lines = [f"### {_TITLE_SIGNS[report.title]} sits-validate: {report.title}", "", _cell(report.reason), ""]
    if report.problems:
        lines += [
            f"- `{p.mark}` {_cell(p.message)}" + (f". {_cell(p.hint)}" if p.hint else "") for p in report.problems
        ]
        lines.append("")
    shown = [finding for finding in ordered(report) if finding.treated_as != "skipped"]
    if shown:
        lines += ["| | rule | load point | what was found |", "| --- | --- | --- | --- |"]
        for finding in shown:
            message = _cell(finding.message)
            if finding.hint and finding.treated_as != "pass":
                message += f"<br>{_cell(finding.hint)}"
            if finding.waived_by:
                message += f"<br>{_cell(finding.waived_by)}"
            rule = f"{finding.rule_id}<br>{finding.rule_name}"
            lines.append(f"| {_SIGNS[finding.treated_as]} | {rule} | {_cell(finding.scope) or 'run'} | {message} |")
        lines.append("")
    sources = ", ".join(f"`{_cell(name)}`" for name in report.results) or "none"
    lines.append(f"Result: {sources}. Configuration: `{_cell(report.config)}`. Exit code {report.exit_code}.")
    return "\n".join(lines) + "\n"


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def github(report: Report) -> str:
    """Workflow commands that GitHub Actions turns into annotations."""
    lines = []
    for problem in report.problems:
        file, line, column = place(report, problem.mark)
        message = problem.message + (f". {problem.hint}" if problem.hint else "")
        lines.append(f"::error file={_property(file)},line={line},col={column},title=sits-validate::{_data(message)}")
    levels = {"critical": "error", "unjudged": "error", "warn": "warning", "waived": "notice"}
    for finding in ordered(report):
        level = levels.get(finding.treated_as)
        if level is None:
            continue
        file, line, column = place(report, finding.mark)
        title = _property(
            f"{finding.rule_id} {finding.rule_name}" + (f" at {finding.scope}" if finding.scope else "")
        )
        message = finding.message + (f". {finding.hint}" if finding.hint else "")
        lines.append(f"::{level} file={_property(file)},line={line},col={column},title={title}::{_data(message)}")
    lines.append(f"::notice title=sits-validate::{_data(f'{report.title}: {report.reason}')}")
    return "\n".join(lines) + "\n"
