"""Report formats against their published schemas, with findings of every kind and hostile text in them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xmlschema
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sits.validate import explain
from sits.validate.config import load_config
from sits.validate.evaluate import evaluate, load_context
from sits.validate.report import Report, report_of
from sits.validate.rules.model import Finding, Outcome, Severity, all_rules
from sits.validate.source import Mark, Problem
from sits.validate.verdict import decide
from sits.validate.writers import FORMATS, writer

SCHEMAS = Path(__file__).parents[2] / "data" / "schemas"
ROOT = Path(__file__).parents[3]
TREATED = ("pass", "warn", "critical", "unjudged", "waived", "skipped")


@pytest.fixture
def mixed(workshop: Any) -> Report:
    """A real validation with a finding of every kind."""
    workshop.run("candidate", requests=60, failed=6)
    text = """
result: candidate
rules:
  ttft: [{p50: 1 ms}, {p50: 1 s, severity: warn}]
  itl: {p99: 1 ms}
  e2e: {p99: 1 ms, severity: warn}
  error-rate: {max: 10%}
  quality: {max_kl: 1}
  memory: {max: 1 GB}
waivers:
  - {rule: itl, owner: a, reason: "<b> & \\" |", expires: 2027-01-01}
"""
    context = load_context(load_config(workshop.config(text)), today=date(2026, 12, 1))
    report = report_of(context, evaluate(context))
    assert {finding.treated_as for finding in report.findings} == set(TREATED)
    return report


HOSTILE = 'a\0b\x1b[31m\ud800 <x> & ]]> "q" | `c` %0A ::error:: \u2028 \U0001f600\r\n::set-output'
texts = st.sampled_from([HOSTILE, "", "plain", "x" * 300]) | st.text(max_size=20)
findings = st.builds(
    Finding,
    outcome=st.sampled_from(Outcome), message=texts, rule_id=st.sampled_from(sorted(all_rules())), rule_name=texts,
    severity=st.sampled_from(Severity), metric=st.none() | texts, measured=st.none() | st.floats(), bound=st.floats(),
    margin=st.none() | st.floats(), low=st.none() | st.floats(), n=st.none() | st.integers(), scope=texts,
    hint=st.none() | texts, treated_as=st.sampled_from(TREATED), waived_by=st.none() | texts,
    mark=st.none() | st.builds(Mark, st.sampled_from([".sits/config.yaml", "a b%.yaml"]), st.integers(0, 9)),
)  # fmt: skip
reports = st.builds(
    lambda found, problems: Report(
        verdict=decide(found) if not problems else None, problems=[Problem(p, Mark("c.yaml"), p) for p in problems]
    ),
    st.lists(findings, max_size=4), st.lists(texts, max_size=2),
)  # fmt: skip


def check_sarif(text: str) -> dict[str, Any]:
    data = json.loads(text)
    SARIF.validate(data)
    return data


def check_code_quality(text: str) -> list[dict[str, Any]]:
    issues = json.loads(text)
    for issue in issues:
        assert set(issue) == {"check_name", "description", "severity", "fingerprint", "location"}
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert issue["location"]["path"]
        assert not issue["location"]["path"].startswith("./")
        assert issue["location"]["lines"]["begin"] >= 1
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    return issues


SARIF = jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text()))
JUNIT = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


def test_sarif_fits_the_official_schema_and_every_result_has_a_place(mixed: Report) -> None:
    run = check_sarif(writer("sarif")(mixed))["runs"][0]
    assert len(run["results"]) == sum(f.treated_as not in ("pass", "skipped") for f in mixed.findings)
    for result in run["results"]:
        physical = result["locations"][0]["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "config.yaml"
        assert physical["region"]["startLine"] > 1
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert {result["level"] for result in run["results"]} == {"error", "warning", "note"}
    assert sum("suppressions" in result for result in run["results"]) == 1


def test_junit_fits_the_common_schema_and_counts(mixed: Report) -> None:
    text = writer("junit")(mixed)
    JUNIT.validate(text)
    suite = ET.fromstring(text)
    for tag, attribute in (
        ("failure", "failures"),
        ("error", "errors"),
        ("skipped", "skipped"),
        ("testcase", "tests"),
    ):
        assert len(suite.findall(f".//{tag}")) == int(suite.get(attribute, "-1"))
    assert int(suite.get("failures", "0")) == sum(f.treated_as == "critical" for f in mixed.findings)


def test_code_quality_has_gitlabs_fields(mixed: Report) -> None:
    issues = check_code_quality(writer("codequality")(mixed))
    assert {issue["severity"] for issue in issues} == {"critical", "major", "minor", "info"}


def test_fingerprints_do_not_move_with_measured_values(workshop: Any) -> None:
    seen = []
    for seed in (1, 2):
        workshop.run("candidate", requests=60, seed=seed)
        context = load_context(load_config(workshop.config("result: candidate\nrules:\n  ttft: {p50: 1 ms}\n")))
        report = report_of(context, evaluate(context))
        seen.append([i["fingerprint"] for i in check_code_quality(writer("codequality")(report))])
    assert seen[0] == seen[1] != []


def test_json_carries_what_a_machine_needs(mixed: Report) -> None:
    data = json.loads(writer("json")(mixed))
    assert data["verdict"] == "critical"
    assert data["exit_code"] == 1
    assert sum(data["counts"].values()) == len(data["findings"])
    finding = next(f for f in data["findings"] if f["metric"] == "ttft.p50" and f["outcome"] == "fail")
    assert finding["line"] == 4
    assert finding["bound"] == 1.0
    assert finding["margin"] < -50
    assert finding["page"] == "docs/rules/SITS-C001.md"


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(reports)
def test_every_format_survives_hostile_findings(report: Report) -> None:
    rendered = {name: writer(name)(report) for name in FORMATS}
    for text in rendered.values():
        text.encode("utf-8", "replace")
    JUNIT.validate(rendered["junit"])
    sarif = json.loads(rendered["sarif"])
    del sarif["runs"][0]["tool"]["driver"]["rules"][1:]  # the same in every report, and checked above
    SARIF.validate(sarif)
    check_code_quality(rendered["codequality"])
    json.loads(rendered["json"])
    for line in rendered["github"].rstrip("\n").split("\n"):
        assert line.startswith(("::error ", "::warning ", "::notice "))


def test_docs_pages_are_those_of_the_registry() -> None:
    folder = ROOT / "docs" / "rules"
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    assert written == explain.pages(), "run: python -m sits.validate.explain docs/rules"
