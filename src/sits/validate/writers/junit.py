"""JUnit XML in the dialect every CI system reads (Jenkins' and GitLab's): one test case a finding."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from sits.validate.report import Report
from sits.validate.rules.model import Finding
from sits.validate.writers.machines import place

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """Text without the characters XML 1.0 cannot hold."""
    return _FORBIDDEN.sub("�", text)


def junit(report: Report) -> str:
    """Critical findings are failures, what could not be judged is an error, warnings are skipped with a reason."""
    suite = ET.Element(
        "testsuite", name="sits-validate", timestamp=report.created[:19], hostname="localhost", time="0"
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("verdict", report.title), ("exit_code", str(report.exit_code)), ("reason", report.reason)):
        ET.SubElement(properties, "property", name=name, value=clean(value))
    counts = {"failure": 0, "error": 0, "skipped": 0}
    for finding in report.findings:
        kind = _case(suite, report, finding)
        if kind:
            counts[kind] += 1
    for problem in report.problems:
        case = ET.SubElement(
            suite,
            "testcase",
            classname="sits-validate",
            name=clean(f"{problem.mark}: {problem.message}")[:200],
            time="0",
        )
        error = ET.SubElement(case, "error", message=clean(problem.message), type="problem")
        error.text = clean(str(problem))
        counts["error"] += 1
    tests = len(report.findings) + len(report.problems)
    suite.set("tests", str(tests))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    ET.indent(suite, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ET.Element, report: Report, finding: Finding) -> str | None:
    name = finding.rule_name
    if finding.metric:
        name += f": {finding.metric}"
    if finding.scope:
        name += f" at {finding.scope}"
    case = ET.SubElement(
        suite, "testcase", classname=f"sits-validate.{finding.rule_id}", name=clean(name), time="0"
    )  # fmt: skip
    file, line, _ = place(report, finding.mark)
    body = clean(f"{finding.message}" + (f"\n{finding.hint}" if finding.hint else "") + f"\n{file}:{line}")
    message = clean(finding.message)
    if finding.treated_as == "critical":
        element = ET.SubElement(case, "failure", message=message, type=finding.outcome.value)
        element.text = body
        return "failure"
    if finding.treated_as == "unjudged":
        element = ET.SubElement(case, "error", message=message, type=finding.outcome.value)
        element.text = body
        return "error"
    if finding.treated_as in ("warn", "waived", "skipped"):
        reason = finding.waived_by or message
        ET.SubElement(case, "skipped", message=clean(f"{finding.treated_as}: {reason}"))
        return "skipped"
    return None
