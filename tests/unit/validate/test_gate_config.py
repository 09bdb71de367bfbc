"""The configuration: lines in messages, nearest keys, environment, extends, profiles, waivers, presets."""

from __future__ import annotations

import copy
import json
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.validate.config import load_config
from sits.validate.evaluate import evaluate, load_context
from sits.validate.presets import PRESETS
from sits.validate.schema import config_schema
from sits.validate.schema_check import check
from sits.validate.source import ConfigError, Mark, Node, parse_yaml

GOOD = "version: 1\nrules:\n  ttft: {p50: 150 ms}\n"


def problems(text: str, workshop: Any, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(workshop.config(text), **arguments)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rulez:\n  ttft: {p50: 1}\n", "config.yaml:1:1: unknown key 'rulez' at the top. Did you mean 'rules'?"),
        ("rules:\n  itl: {p99: 1}\n  tft: {p50: 1}\n", "config.yaml:3:3: unknown key 'tft' in 'rules'. Did you "
            "mean 'ttft'"),
        ("rules:\n  ttft: {p50: 1, max: 3 lightyears}\n", "config.yaml:2:23: 'rules.ttft.max' cannot be '3 "
            "lightyears'"),
        ("rules:\n  ttft: {P99: 1}\n", "Did you mean 'p99'?"),
        ("rules:\n  ttft: {p99: true}\n", "must be a number or text, not true"),
        ("rules:\n  ttft: {p99: -3}\n", "the least allowed is 0"),
        ("rules:\n  ttft: {severity: fatal, p50: 1}\n", "cannot be 'fatal'"),
        ("rules:\n  ttft: {}\n", "rule ttft has no bound. For example ttft:"),
        ("rules:\n  ttft: {p0: 5}\n", "p0 is no percentile"),
        ("rules:\n  error-rate: {decide: bound}\n", "lacks 'max'"),
        ("rules:\n  error-rate: {max: 5}\n", "Write a share as 0.03 or 3%"),
        ("rules:\n  output-length: {min: 2, max: 1}\n", "min 2 is more than max 1"),
        ("rules:\n  ttft: {p50: 1}\n  SITS-C001: {p50: 2}\n", "rule ttft is given twice (first on line 2)"),
        ("rules:\n  ttft: {p50: 1}\n  ttft: {p50: 2}\n", "config.yaml:3:3: 'ttft' is given twice (first on line 2)"),
        ("rules: {}\n", "there is no rule to judge by"),
        ("version: 1\n", "there is no rule to judge by"),
        ("version: 2\nrules: {ttft: {p50: 1}}\n", "'version' cannot be '2'"),
        ("", "the file is empty"),
        ("- a\n- b\n", "must be a mapping"),
        ("rules: [\n", "not valid YAML"),
        ("rules:\n\tttft: 1\n", "config.yaml:2:1: not valid YAML"),
        ("a: &a [*a]\n", "alias that contains itself"),
        ("rules: !!python/object:os.system x\n", "tag tag:yaml.org,2002:python"),
        ("rules:\n  ttft: {p50: '${NO_SUCH_VARIABLE}'}\n", "environment variable NO_SUCH_VARIABLE is not set"),
        ("rules:\n  ttft: {p50: ${BOUND}}\n", "Inside braces a variable must be quoted"),
        ("preset: mlperf/server/lama-2-70b\n", "Did you mean 'mlperf/server/llama-2-70b'?"),
        ("extends: nowhere.yaml\n", "config.yaml:1:10: 'extends' names nowhere.yaml, which does not exist"),
        (GOOD + "waivers:\n  - {rule: ttft, owner: me, reason: x}\n", "lacks 'expires'"),
        (GOOD + "waivers:\n  - {rule: ttft, owner: me, reason: x, expires: 2026-02-30}\n", "'2026-02-30' is no date"),
        (GOOD + "waivers:\n  - {rule: tttft, owner: me, reason: x, expires: 2027-01-01}\n", "unknown rule 'tttft'"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(text: str, expected: str, workshop: Any) -> None:
    found = problems(text, workshop)
    assert any(expected in problem for problem in found), found


def test_all_mistakes_are_reported_at_once_in_order(workshop: Any) -> None:
    found = problems("rulez: 1\nrules:\n  ttft: {p50: x}\n  itl: {q99: 3}\n", workshop)
    assert [problem.split(": ")[0].rsplit(":", 2)[1] for problem in found] == ["1", "3", "4"]


def test_environment_variables_are_interpolated_before_types(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUND", "250")
    text = "rules:\n  ttft: {p50: '${BOUND} ms', p90: '${UNSET:-300} ms', p99: '${BOUND}', note: 'costs $$5'}\n"
    config = load_config(workshop.config(text))
    (ttft,) = (use for use in config.settings if use.rule.name == "ttft")
    assert ttft.parameters == {"p50": "250 ms", "p90": "300 ms", "p99": 250}


def test_yaml_1_1_surprises_stay_text(workshop: Any) -> None:
    node = parse_yaml("a: yes\nb: 12:30:00\nc: 2026-12-31\nd: 0x10\ne: 1e3\nf: .5\ng: 0o7\nh: ~\n", "x")
    values = ["yes", "12:30:00", "2026-12-31", "0x10", 1000.0, 0.5, "0o7", None]
    assert list(node.plain().values()) == values


def test_extends_presets_profiles_in_that_order(workshop: Any) -> None:
    workshop.config("rules:\n  ttft: {p50: 1 s, p99: 3 s}\n  itl: {p99: 60}\nconfidence: 0.9\n", "org/base.yaml")
    text = """
extends: org/base.yaml
preset: trustworthy
rules:
  SITS-C001: {p50: 500 ms}
  minimum-run: {requests: 7}
  itl: false
profiles:
  staging:
    rules: {ttft: {p50: 2 s}}
    confidence: 0.8
"""
    path = workshop.config(text)
    config = load_config(path)
    uses = {use.rule.name: use.parameters for use in config.settings}
    assert uses["ttft"] == {"p50": "500 ms", "p99": "3 s"}
    assert uses["minimum-run"] == {"requests": 7, "duration": 10}
    assert "itl" not in uses
    assert config.confidence == 0.9
    staged = load_config(path, "staging")
    assert {u.rule.name: u.parameters for u in staged.settings}["ttft"] == {"p50": "2 s", "p99": "3 s"}
    assert staged.confidence == 0.8
    assert load_config(path, environment={"SITS_PROFILE": "staging"}).profile == "staging"
    with pytest.raises(ConfigError, match=r"there is no profile 'stagin'.*Did you mean 'staging'"):
        load_config(path, "stagin")


def test_a_finding_points_at_the_line_that_won(workshop: Any) -> None:
    workshop.config("rules:\n  ttft: {p99: 1}\n  itl: {p99: 1}\n", "base.yaml")
    path = workshop.config("extends: base.yaml\nrules:\n  ttft: {p50: 1}\n")
    marks = {use.rule.name: use.mark for use in load_config(path).settings}
    assert (Path(marks["ttft"].file).name, marks["ttft"].line) == ("config.yaml", 3)
    assert (Path(marks["itl"].file).name, marks["itl"].line) == ("base.yaml", 3)


def test_extends_in_a_circle_is_found(workshop: Any) -> None:
    workshop.config("extends: b.yaml\n", "a.yaml")
    workshop.config("extends: a.yaml\n", "b.yaml")
    with pytest.raises(ConfigError, match=r"circle: a\.yaml -> b\.yaml -> a\.yaml"):
        load_config(workshop.folder / "a.yaml")


def test_an_alias_bomb_is_refused_quickly(workshop: Any) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "too many values" in problems("\n".join(lines), workshop)[0]


def test_severity_off_and_lists_of_uses(workshop: Any) -> None:
    text = "rules:\n  ttft:\n    - {p50: 1, points: {concurrency: 1}}\n    - {p50: 2, severity: warn}\n"
    text += "  itl: {severity: off, p50: 1}\n"
    config = load_config(workshop.config(text))
    assert [(u.rule.name, u.severity.value) for u in config.settings if not u.rule.default_on] == [
        ("ttft", "critical"), ("ttft", "warn"),
    ]  # fmt: skip


def waived(workshop: Any, waiver: str, today: str = "2026-12-01", bound: str = "1 ms") -> Any:
    workshop.run("candidate", requests=40)
    text = f"result: candidate\nrules:\n  ttft: {{p50: {bound}, max: {bound}}}\nwaivers:\n  - {waiver}\n"
    config = load_config(workshop.config(text))
    return evaluate(load_context(config, today=date.fromisoformat(today)))


WAIVER = "{rule: SITS-C001, owner: ann@example.com, reason: issue 7, expires: 2026-12-31}"


def test_a_waiver_accepts_a_violation_until_its_day_and_is_then_one_itself(workshop: Any) -> None:
    verdict = waived(workshop, WAIVER)
    assert int(verdict.code) == 0
    assert [f.waived_by for f in verdict.findings if f.rule_name == "ttft"] == [
        "waived by ann@example.com until 2026-12-31: issue 7"
    ] * 2
    assert int(waived(workshop, WAIVER, "2026-12-31").code) == 0
    late = waived(workshop, WAIVER, "2027-01-01")
    assert int(late.code) == 1
    assert {f.rule_name for f in late.findings if f.treated_as == "critical"} == {"ttft", "waivers"}


def test_an_expired_waiver_of_a_rule_that_passes_is_a_violation_too(workshop: Any) -> None:
    verdict = waived(workshop, WAIVER, "2027-01-01", bound="9 s")
    assert [f.rule_name for f in verdict.findings if f.treated_as == "critical"] == ["waivers"]


def test_a_waiver_of_one_metric_leaves_the_other(workshop: Any) -> None:
    verdict = waived(workshop, WAIVER.replace("owner", "metric: ttft.max, owner"))
    assert {f.metric: f.treated_as for f in verdict.findings if f.rule_name == "ttft"} == {
        "ttft.p50": "critical", "ttft.max": "waived",
    }  # fmt: skip


def test_a_waiver_nothing_needs_is_a_warning(workshop: Any) -> None:
    verdict = waived(workshop, WAIVER, bound="9 s")
    assert int(verdict.code) == 2
    assert [f.rule_name for f in verdict.findings if f.treated_as == "warn"] == ["unused-waiver"]


def test_every_preset_is_valid_and_mlperf_limits_are_the_published_ones(workshop: Any) -> None:
    for name in PRESETS:
        config = load_config(workshop.config(f"preset: {name}\n"))
        assert any(not use.rule.default_on for use in config.settings)
    config = load_config(workshop.config("preset: mlperf/interactive/llama-3.1-8b\n"))
    uses = {use.rule.name: use.parameters for use in config.settings}
    assert uses["ttft"] == {"p99": 500, "confidence": 0.99, "strict": True}
    assert uses["tpot"] == {"p99": 30, "confidence": 0.99, "strict": True}
    assert uses["minimum-run"] == {"duration": 600}


def test_strict_means_less_than(workshop: Any) -> None:
    records = workshop.records(459)
    for record in records:
        step = 10_000_000
        record.chunk_times_ns = [step * (k + 1) for k in range(len(record.chunk_times_ns))]
    workshop.run("candidate", records=records)
    for strict, outcome in (("true", "fail"), ("false", "pass")):
        text = f"result: candidate\nrules:\n  ttft: {{p99: 10, confidence: 0.99, strict: {strict}}}\n"
        findings = evaluate(load_context(load_config(workshop.config(text)))).findings
        assert [f.outcome for f in findings if f.rule_name == "ttft"] == [outcome]


def test_the_published_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema())


def as_node(value: Any) -> Node:
    mark = Mark("x")
    if isinstance(value, dict):
        return Node({key: as_node(child) for key, child in value.items()}, mark)
    if isinstance(value, list):
        return Node([as_node(child) for child in value], mark)
    return Node(value, mark)


BASE: dict[str, Any] = {
    "version": 1,
    "result": ["out", "more"],
    "rules": {
        "ttft": [{"p99": "500 ms", "points": {"concurrency": [1, 8]}}, {"p50": 20}],
        "regression": {"tolerance": "3%", "metrics": ["itl.p99"]},
        "ratio": {"bounds": {"e2e.p99": 2.0}},
        "convergence": True,
        "SITS-C006": {"max": 0.01, "severity": "warn"},
    },
    "waivers": [{"rule": "ttft", "owner": "a", "reason": "b", "expires": "2027-01-01"}],
    "bench": {"model": "x", "concurrency": [1, 2], "quick": True},
    "profiles": {"staging": {"rules": {"itl": {"p99": 1.5}}}},
}  # fmt: skip
scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-2, 2), st.sampled_from(
    ["500 ms", "3%", "x", "", "critical", "last", "2027-01-01", "itl.p99", "p99"]))  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["p99", "a", "max"]), inner),
    max_leaves=4,
)  # fmt: skip


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here]
    for key, child in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        found += paths(child, (*here, key))
    return found


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(paths(BASE)), value=values, rename=st.none() | st.sampled_from(["p99", "itl", "zzz"]))
def test_our_checker_agrees_with_the_jsonschema_package(
    path: tuple[Any, ...], value: Any, rename: str | None
) -> None:
    mutated = copy.deepcopy(BASE)
    if not path:
        mutated = value
    else:
        parent = mutated
        for step in path[:-1]:
            parent = parent[step]
        if rename is not None and isinstance(parent, dict):
            parent[rename] = parent.pop(path[-1])
        else:
            parent[path[-1]] = value
    official = jsonschema.Draft202012Validator(config_schema()).is_valid(mutated)
    ours = check(as_node(mutated), config_schema())
    assert (not ours) == official, (json.dumps(mutated), [str(problem) for problem in ours])
