"""From findings to one verdict and one exit code.

0 everything that was judged passes; 1 a critical rule is violated; 2 only warnings; 3 could not judge. A violation
outranks "could not judge": the pipeline must stop either way, and the reason that is certain comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from sits.validate.context import Context, select_points
from sits.validate.rules.model import Finding, Outcome, Settings, Severity

FailOn = Literal["critical", "warn", "never"]


class ExitCode(IntEnum):
    PASS = 0
    CRITICAL = 1
    WARN = 2
    UNJUDGED = 3


TITLES = {
    ExitCode.PASS: "PASS",
    ExitCode.CRITICAL: "CRITICAL",
    ExitCode.WARN: "WARNING",
    ExitCode.UNJUDGED: "COULD NOT JUDGE",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings with what each counts as, the exit code they amount to, and why in one line."""

    code: ExitCode
    findings: tuple[Finding, ...]
    reason: str
    exit_code: int  # after --fail-on

    @property
    def title(self) -> str:
        return TITLES[self.code]

    def count(self, treated_as: str) -> int:
        return sum(1 for finding in self.findings if finding.treated_as == treated_as)


def treat(finding: Finding, settings: Settings) -> str:
    """What a finding counts as: pass, warn, critical, unjudged or skipped."""
    by_severity = "critical" if settings.severity is Severity.CRITICAL else "warn"
    if finding.outcome is Outcome.PASS:
        return "pass"
    if finding.outcome is Outcome.NOT_APPLICABLE:
        return "skipped"
    if finding.outcome is Outcome.ERROR:
        return "unjudged"
    if finding.outcome is Outcome.FAIL:
        return by_severity
    if finding.outcome is Outcome.INCONCLUSIVE:
        # A rule that can only warn cannot become critical by being undecided.
        return "warn" if by_severity == "warn" and settings.inconclusive == "critical" else settings.inconclusive
    chosen = settings.no_data or settings.rule.no_data
    if finding.outcome is Outcome.INVALID and chosen == "skip":
        chosen = None
    if chosen is None:
        return "unjudged" if by_severity == "critical" else "warn"
    if chosen == "critical":
        return by_severity
    return {"skip": "skipped"}.get(chosen, chosen)


def waive(context: Context, finding: Finding) -> Finding:
    """Apply the waivers that are still valid to a finding that would otherwise count."""
    if finding.treated_as in ("pass", "skipped") or finding.outcome is Outcome.ERROR:
        return finding
    for index, waiver in enumerate(context.config.waivers):
        if waiver.rule.id != finding.rule_id or waiver.expires < context.today:
            continue
        if waiver.metric is not None and waiver.metric != finding.metric:
            continue
        if waiver.points and not _in_points(context, finding, waiver.points):
            continue
        context.used_waivers.add(index)
        text = f"waived by {waiver.owner} until {waiver.expires.isoformat()}: {waiver.reason}"
        return finding.with_(treated_as="waived", waived_by=text)
    return finding


def _in_points(context: Context, finding: Finding, selector: dict[str, object]) -> bool:
    for loaded in context.results:
        for point in select_points(loaded.result, selector):
            if context.scope(loaded, point) == finding.scope:
                return True
    return False


def decide(findings: Sequence[Finding], fail_on: FailOn = "critical") -> Verdict:
    """The verdict over all findings."""
    counts = {name: sum(1 for f in findings if f.treated_as == name) for name in
              ("pass", "warn", "critical", "unjudged", "waived")}  # fmt: skip
    if counts["critical"]:
        code, reason = ExitCode.CRITICAL, f"{_times(counts['critical'], 'critical violation')}"
        if counts["unjudged"]:
            reason += f", and {_times(counts['unjudged'], 'check')} could not be judged"
    elif counts["unjudged"]:
        code, reason = ExitCode.UNJUDGED, f"{_times(counts['unjudged'], 'check')} could not be judged"
    elif counts["warn"]:
        code, reason = ExitCode.WARN, f"{_times(counts['warn'], 'warning')}, a person must look"
    elif counts["pass"] or counts["waived"]:
        code, reason = ExitCode.PASS, f"{_times(counts['pass'], 'check')} passed"
        if counts["waived"]:
            reason += f", {counts['waived']} waived"
    else:
        code, reason = ExitCode.UNJUDGED, "no rule was evaluated"
    exit_code = int(code)
    if code is ExitCode.WARN and fail_on == "warn":
        exit_code = int(ExitCode.CRITICAL)
    elif code in (ExitCode.WARN, ExitCode.CRITICAL) and fail_on == "never":
        exit_code = int(ExitCode.PASS)
    return Verdict(code, tuple(findings), reason, exit_code)


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
