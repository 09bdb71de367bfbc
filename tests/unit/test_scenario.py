"""Scenario files: every built-in one is valid, and every mistake is named with its line."""

import json

import pytest

from sits.bench.lengths import Lengths
from sits.bench.scenario import built_in_names, built_in_text, load_scenario, parse_scenario, schema_text
from sits.errors import InputError
from sits.spec.slo import parse_slo


def test_built_in_scenarios_are_the_promised_ones_and_valid():
    assert built_in_names() == [
        "agent",
        "chat",
        "code",
        "mlperf-interactive",
        "mlperf-server",
        "offline",
        "rag-long-context",
    ]
    for name in built_in_names():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.description
        parse_slo(scenario.slo_text())
        for part in (scenario.workload, scenario.workload.conversation):
            for text in (getattr(part, key, None) for key in ("input_len", "output_len", "turns", "user_len")):
                assert text is None or Lengths.parse(text)


def test_schema_accepts_the_built_in_ones_and_refuses_a_typo():
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    schema = json.loads(schema_text())
    for name in built_in_names():
        data = yaml.safe_load(built_in_text(name))
        for key in ("concurrency", "rate"):
            if key in data["load"]:
                data["load"][key] = str(data["load"][key])
        jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"lode": {}}, schema)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("name: x\nloda: {}\n", 2, "did you mean 'load'"),
        ("load:\n  concurency: 4\n", 2, "did you mean 'concurrency'"),
        ("workload:\n  conversation:\n    turn: 3\n", 3, "did you mean 'turns'"),
        ("workload:\n  mix:\n    a:\n      wieght: 1\n", 4, "did you mean 'weight'"),
        ("load:\n  duration_s: -1\n", 2, "greater than 0"),
        ("load:\n  requests: 5\n  duration_s: 4\n", 1, "not both"),
        ("load:\n  rate: 1\n  concurrency: 1\n", 1, "one of"),
        ("target:\n  api: chats\n", 2, "chat"),
        ("target:\n  timeouts:\n    idle_s: soon\n", 3, "number"),
        ("workload:\n  dataset: a.txt\n  trace: {file: b}\n", 1, "exclude"),
        ("workload:\n  input_len: [1\n", 3, "YAML"),
        ("seed: 1.5\n", 1, "integer"),
        ("slo: {speed: 1ms}\n", 1, "ttft"),
    ],
)
def test_mistakes_are_named_with_their_line(text, line, expected):
    with pytest.raises(InputError) as caught:
        parse_scenario(text, "f.yaml", {})
    message = str(caught.value)
    assert f"line {line}" in message
    assert expected in message


@pytest.mark.parametrize("text", ["", "- a\n", "just text", "\x00", "a: &a [*a]"])
def test_other_documents_are_refused(text):
    with pytest.raises(InputError):
        parse_scenario(text, "f.yaml", {})


def test_numbers_and_lists_are_taken_where_text_is_meant():
    scenario = parse_scenario("workload: {input_len: 128}\nload: {concurrency: [1, 4], requests: 3}\n", "f", {})
    assert scenario.workload.input_len == "128"
    assert scenario.load.concurrency == "1,4"


def test_environment_variables():
    text = "target:\n  endpoint: http://${HOST}:${PORT:-8000}\n"
    assert parse_scenario(text, "f", {"HOST": "h"}).target.endpoint == "http://h:8000"
    with pytest.raises(InputError, match="HOST is not set"):
        parse_scenario(text, "f", {})


def test_paths_are_relative_to_the_file_and_names_are_suggested(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("\ufeffworkload: {dataset: data.jsonl}\n", encoding="utf-8")
    assert load_scenario(str(file)).workload.dataset == str(tmp_path / "data.jsonl")
    with pytest.raises(InputError, match="'offline'"):
        load_scenario("ofline")
    with pytest.raises(InputError, match="cannot read"):
        load_scenario(str(tmp_path / "none.yaml"))
