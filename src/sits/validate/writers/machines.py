"""Reports for machines: our JSON, SARIF 2.1.0, and GitLab code quality.

Every finding points at the line of the rule in the configuration: GitHub rejects a whole SARIF file when one result
has no place, and that line is what a person would change.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from sits import __version__
from sits.validate.report import Report, relative
from sits.validate.rules.model import Finding, Severity, all_rules
from sits.validate.source import Mark

JSON_VERSION = "1.0"
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_HOME = "https://sits-llm.invalid"


def place(report: Report, mark: Mark | None) -> tuple[str, int, int]:
    """File (relative), line and column of a finding; the configuration's first line when it has none."""
    if mark is None:
        return relative(report.config), 1, 1
    return relative(mark.file), max(1, mark.line), max(1, mark.column)


def fingerprint(finding: Finding, file: str) -> str:
    """Stays the same from run to run: rule, figure and load point, not the measured value or the line."""
    key = "|".join((finding.rule_id, finding.metric or "", finding.scope, file))
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]


def problem_fingerprint(message: str, file: str) -> str:
    return hashlib.sha256(f"problem|{message}|{file}".encode("utf-8", "replace")).hexdigest()[:32]


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def finding_fields(report: Report, finding: Finding) -> dict[str, Any]:
    """A finding as plain JSON."""
    file, line, column = place(report, finding.mark)
    return {
        "rule": finding.rule_id,
        "name": finding.rule_name,
        "severity": finding.severity.value,
        "outcome": finding.outcome.value,
        "treated_as": finding.treated_as,
        "message": finding.message,
        "hint": finding.hint,
        "scope": finding.scope or None,
        "metric": finding.metric,
        "measured": _number(finding.measured),
        "bound": _number(finding.bound),
        "unit": finding.unit or None,
        "margin": _number(finding.margin),
        "low": _number(finding.low),
        "high": _number(finding.high),
        "confidence": finding.confidence,
        "n": finding.n,
        "waived": finding.waived_by,
        "evidence": finding.evidence,
        "file": file,
        "line": line,
        "column": column,
        "page": f"docs/rules/{finding.rule_id}.md",
    }


def to_json(report: Report) -> str:
    """Our own format, versioned: everything the validation knows."""
    counts = dict.fromkeys(("pass", "warn", "critical", "unjudged", "waived", "skipped"), 0)
    for finding in report.findings:
        counts[finding.treated_as] += 1
    data = {
        "sits_validate": JSON_VERSION,
        "sits": __version__,
        "created": report.created,
        "verdict": report.code.name.lower(),
        "exit_code": report.exit_code,
        "reason": report.reason,
        "config": relative(report.config),
        "profile": report.profile,
        "results": report.results,
        "baselines": report.baselines,
        "counts": counts,
        "problems": [
            {"message": p.message, "hint": p.hint, "file": relative(p.mark.file), "line": p.mark.line,
             "column": p.mark.column}
            for p in report.problems
        ],
        "findings": [finding_fields(report, finding) for finding in report.findings],
    }  # fmt: skip
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_LEVELS = {"critical": "error", "unjudged": "error", "warn": "warning"}


def sarif(report: Report) -> str:
    """SARIF 2.1.0 for code-scanning services: violations only; waived ones are suppressed results."""
    rules = [
        {
            "id": rule.id,
            "name": "".join(part.capitalize() for part in rule.name.split("-")),
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why},
            "help": {"text": f"{rule.fix}\n\nExample: {rule.example}"},
            "helpUri": f"{_HOME}/{rule.page}",
            "defaultConfiguration": {"level": "error" if rule.severity is Severity.CRITICAL else "warning"},
        }
        for rule in all_rules().values()
    ]
    index = {rule["id"]: position for position, rule in enumerate(rules)}
    results: list[dict[str, Any]] = []
    for finding in report.findings:
        if finding.treated_as in ("pass", "skipped"):
            continue
        file, line, column = place(report, finding.mark)
        text = finding.message if not finding.scope else f"[{finding.scope}] {finding.message}"
        result: dict[str, Any] = {
            "ruleId": finding.rule_id,
            "ruleIndex": index[finding.rule_id],
            "level": _LEVELS.get(finding.treated_as, "note"),
            "message": {"text": text + (f". {finding.hint}" if finding.hint else "")},
            "locations": [_location(file, line, column)],
            "partialFingerprints": {"sitsFinding/v1": fingerprint(finding, file)},
        }
        if finding.waived_by:
            result["suppressions"] = [{"kind": "external", "justification": finding.waived_by}]
        results.append(result)
    notifications = [
        {
            "level": "error",
            "message": {"text": problem.message + (f". {problem.hint}" if problem.hint else "")},
            "locations": [_location(*place(report, problem.mark))],
        }
        for problem in report.problems
    ]
    run = {
        "tool": {
            "driver": {"name": "sits-validate", "version": __version__, "informationUri": _HOME, "rules": rules}
        },
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [
            {
                "executionSuccessful": report.verdict is not None,
                "exitCode": report.exit_code,
                "exitCodeDescription": f"{report.title}: {report.reason}",
                "toolExecutionNotifications": notifications,
            }
        ],
    }
    data = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _location(file: str, line: int, column: int) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(file)},
            "region": {"startLine": line, "startColumn": column},
        }
    }


def _uri(file: str) -> str:
    from urllib.parse import quote

    return quote(file, safe="/:-._~") or "."


_GITLAB_SEVERITY = {"critical": "critical", "unjudged": "major", "warn": "minor", "waived": "info"}


def code_quality(report: Report) -> str:
    """GitLab's code-quality report: a list of issues, empty when there is none."""
    issues = []
    for finding in report.findings:
        if finding.treated_as in ("pass", "skipped"):
            continue
        file, line, _ = place(report, finding.mark)
        scope = f"[{finding.scope}] " if finding.scope else ""
        issues.append(
            {
                "check_name": f"{finding.rule_id} {finding.rule_name}",
                "description": f"{scope}{finding.message}" + (f" ({finding.waived_by})" if finding.waived_by else ""),
                "severity": _GITLAB_SEVERITY[finding.treated_as],
                "fingerprint": fingerprint(finding, file),
                "location": {"path": file, "lines": {"begin": line}},
            }
        )
    for problem in report.problems:
        file, line, _ = place(report, problem.mark)
        issues.append(
            {
                "check_name": "sits-validate",
                "description": problem.message + (f". {problem.hint}" if problem.hint else ""),
                "severity": "blocker",
                "fingerprint": problem_fingerprint(problem.message, file),
                "location": {"path": file, "lines": {"begin": line}},
            }
        )
    unique: dict[str, dict[str, Any]] = {}
    for issue in issues:  # GitLab drops a report whose fingerprints repeat
        key = str(issue["fingerprint"])
        while key in unique:
            key = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
        issue["fingerprint"] = key
        unique[key] = issue
    return json.dumps(list(unique.values()), indent=1, ensure_ascii=False) + "\n"
