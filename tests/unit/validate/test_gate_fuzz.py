"""Mutated configurations and results: never a traceback, never exit 0 on garbage.

The quick variant runs in every test run; ``SITS_FUZZ=1`` (the marker ``slow``) runs the bar's 2,000.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sits.cli import validate

CONFIG = """\
version: 1
result: good
baseline: base
confidence: 0.9
rules:
  ttft: {p50: 150 ms, p99: 2 s, points: {concurrency: 8}}
  error-rate: {max: 2%}
  regression: {tolerance: 3%, metrics: [itl.p99, ttft.typical]}
  minimum-run: {requests: 20, duration: 0 s}
  temporal-consistency: true
waivers:
  - {rule: ttft, owner: a, reason: b, expires: 2099-01-01, metric: ttft.p50}
profiles:
  staging:
    rules: {itl: {p99: 1 s}}
"""
CODES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, bytes]:
    """The bytes of a good run, its baseline and its side files."""
    from importlib import util

    spec = util.spec_from_file_location("gate_conftest", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    import sys

    module = util.module_from_spec(spec)
    sys.modules["gate_conftest"] = module
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("fuzz")
    workshop = module.Workshop(folder)
    workshop.run("good", requests=40, tokens=4, events=module.make_events())
    workshop.run("base", requests=40, tokens=4, seed=5)
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


def judge(place: Path, contents: dict[str, bytes], *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, everything printed, and the JSON report."""
    for name, content in contents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    (place / "report.json").unlink(missing_ok=True)
    before = Path.cwd()
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    os.chdir(place)
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            code = validate.run(["-c", "config.yaml", "-f", "json", "-o", "report.json", *arguments])
    finally:
        os.chdir(before)
    stream.seek(0)
    report = json.loads((place / "report.json").read_text()) if (place / "report.json").exists() else {}
    return code, stream.read(), report


def check(code: int, printed: str, report: dict[str, Any]) -> None:
    assert code in CODES
    assert "Traceback" not in printed
    assert report, printed
    assert report["exit_code"] == code
    assert "internal error" not in printed, printed
    assert not [f for f in report["findings"] if f["outcome"] == "error"], report["findings"]


def run_fuzz(count: int, strategy: Any, test: Any) -> None:
    fuzz = settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=True,
    )(given(strategy)(test))  # fmt: skip
    fuzz()


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["nan", "NaN", "${X}", "${X:-1}", "*a", "&a b", "!!int x", "1e999", "\ufeff", "\0", "{", "- -"]),
)  # fmt: skip
edits = st.lists(
    st.tuples(st.sampled_from(["cut", "insert", "replace", "line"]), st.integers(0, 10**6), st.integers(0, 30), junk),
    min_size=1, max_size=3,
)  # fmt: skip


def mutate_text(text: str, changes: list[tuple[str, int, int, Any]]) -> str:
    for kind, where, length, value in changes:
        at = where % (len(text) + 1)
        new = value if isinstance(value, str) else json.dumps(value, default=str)
        if kind == "cut":
            text = text[:at] + text[at + length :]
        elif kind == "insert":
            text = text[:at] + new + text[at:]
        elif kind == "replace":
            text = text[:at] + new + text[at + length :]
        else:
            lines = text.split("\n")
            row = where % len(lines)
            lines[row] = lines[row].split(":")[0] + ": " + new
            text = "\n".join(lines)
    return text


def fuzz_configs(count: int, place: Path, files: dict[str, bytes]) -> dict[int, int]:
    seen = dict.fromkeys(CODES, 0)

    def one(changes: list[tuple[str, int, int, Any]]) -> None:
        text = mutate_text(CONFIG, changes)
        contents = {**files, "config.yaml": text.encode("utf-8", "replace")}
        code, printed, report = judge(place, contents)
        check(code, printed, report)
        seen[code] += 1
        if code == 0:  # whatever was changed, something was judged and every bound that is left was kept
            assert any(f["outcome"] == "pass" and f["treated_as"] == "pass" for f in report["findings"])
            assert not report["problems"]

    run_fuzz(count, edits, one)
    return seen


def nodes(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here] if here else []
    for key, child in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        found += nodes(child, (*here, key))
    return found


GARBAGE = st.one_of(
    st.sampled_from([float("nan"), float("inf"), -1.0, -(10**18), 10**30, "x", [], {}, None, True, "complete"]), junk
)  # fmt: skip


def fuzz_results(count: int, place: Path, files: dict[str, bytes]) -> dict[int, int]:
    """Changes result.json somewhere, or damages a side file. The figures the rules bind must then not pass."""
    seen = dict.fromkeys(CODES, 0)
    original = json.loads(files["good/result.json"])
    where = nodes(original)
    choice = st.tuples(st.sampled_from(["json", "json", "json", "bytes", "records", "events"]),
                       st.integers(0, len(where) - 1), GARBAGE, st.integers(0, 10**6))  # fmt: skip

    def one(drawn: tuple[str, int, Any, int]) -> None:
        kind, index, value, at = drawn
        contents = {**files, "config.yaml": CONFIG.encode()}
        path: tuple[Any, ...] = ()
        if kind == "json":
            data, path = copy.deepcopy(original), where[index]
            parent = data
            for step in path[:-1]:
                parent = parent[step]
            parent[path[-1]] = value
            contents["good/result.json"] = json.dumps(data).encode()
        else:
            name = {"bytes": "result.json", "records": "records.jsonl.gz", "events": "events.jsonl.gz"}[kind]
            raw = bytearray(files[f"good/{name}"])
            position = at % len(raw)
            if at % 3 == 0:
                raw = raw[:position]
            else:
                raw[position] ^= 1 + at % 255
            contents[f"good/{name}"] = bytes(raw)
        code, printed, report = judge(place, contents)
        check(code, printed, report)
        seen[code] += 1
        if kind in ("records", "events") and at % 3 == 0:
            assert code != 0, (kind, at)
        critical = ("points", "status", "schema_version")
        if kind == "json" and path in {(name,) for name in critical} and value != original[path[0]]:
            assert code != 0 or (path == ("status",) and value == "not_converged"), (path, value)

    run_fuzz(count, choice, one)
    return seen


def test_the_unchanged_files_pass(place: Path, files: dict[str, bytes]) -> None:
    code, printed, report = judge(place, {**files, "config.yaml": CONFIG.replace("waivers", "x-").encode()})
    assert code == 3, printed
    code, printed, report = judge(place, {**files, "config.yaml": CONFIG.split("waivers")[0].encode()})
    assert {f["treated_as"] for f in report["findings"]} <= {"pass", "skipped", "warn"}, printed
    assert code in (0, 2)


def test_mutated_configurations(place: Path, files: dict[str, bytes]) -> None:
    seen = fuzz_configs(120, place, files)
    assert seen[3] > 20


def test_mutated_results(place: Path, files: dict[str, bytes]) -> None:
    seen = fuzz_results(120, place, files)
    assert seen[3] + seen[1] > 20


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("SITS_FUZZ"), reason="set SITS_FUZZ=1 for the 2,000 cases of the bar")
def test_two_thousand_mutations(place: Path, files: dict[str, bytes]) -> None:
    fuzz_configs(1000, place, files)
    fuzz_results(1000, place, files)


def test_records_of_another_kind_are_refused(place: Path, files: dict[str, bytes]) -> None:
    for content in (b"", b"x", gzip.compress(b"{}"), gzip.compress(b'{"sits_records": 1}\n{"request_id": 3}')):
        contents = {**files, "config.yaml": CONFIG.encode(), "good/records.jsonl.gz": content}
        code, printed, report = judge(place, contents)
        check(code, printed, report)
        assert code in (1, 3)
