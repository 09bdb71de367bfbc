"""The result file and its compressed side file: exact round trips, and a clear refusal of anything else."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.errors import InputError
from sits.spec.records import RequestRecord, read_records, write_records
from sits.spec.result import Figure, LoadPoint, Result, Target, load_result, save_result

records = st.builds(
    RequestRecord,
    request_id=st.text(min_size=1, max_size=8),
    t_due=st.integers(0, 2**62),
    t_sent=st.integers(0, 2**62),
    t_end=st.integers(0, 2**62),
    status=st.sampled_from(["ok", "error", "timeout", "cancelled"]),
    chunk_times_ns=st.lists(st.integers(0, 2**50), max_size=5),
    chunk_tokens=st.none() | st.lists(st.integers(1, 8), max_size=5),
    output_tokens=st.integers(0, 10_000),
    error=st.none() | st.text(max_size=30),
)


@given(st.lists(records, max_size=5))
def test_records_survive_the_side_file(tmp_path_factory: pytest.TempPathFactory, items: list[RequestRecord]) -> None:
    path = tmp_path_factory.mktemp("records") / "records.jsonl.gz"
    assert write_records(path, items) == len(items)
    assert read_records(path) == items


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl.gz"
    kept = [RequestRecord(request_id="a", t_due=1, t_sent=2)]
    write_records(path, kept)

    def broken():
        yield RequestRecord(request_id="b", t_due=1, t_sent=2)
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_records(path, broken())
    assert read_records(path) == kept
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not gzip",
        gzip.compress(b'{"foreign": 1}\n'),
        gzip.compress(b'{"sits_records": 1}\n{"request_id": 5}\n'),
    ],
)
def test_foreign_or_damaged_records_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged|not a SITS records file"):
        read_records(path)


def test_a_truncated_side_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl.gz"
    write_records(path, [RequestRecord(request_id=str(i), t_due=i, t_sent=i) for i in range(200)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="damaged"):
        read_records(path)


def example_result() -> Result:
    point = LoadPoint(index=0, mode="closed", concurrency=4, metrics={"ttft.p50": Figure(value=12.5, unit="ms", n=9)})
    target = Target(kind="embedded", name="smollm2-135m")
    return Result(run_id="r", created="2026-12-01T00:00:00Z", status="complete", target=target, points=[point])


def test_result_round_trip(tmp_path: Path) -> None:
    result = example_result()
    save_result(result, tmp_path / "run")
    assert load_result(tmp_path / "run") == result
    assert load_result(tmp_path / "run" / "result.json") == result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema_version="2.0"), "schema version"),
        (lambda data: data.pop("schema_version"), "not a SITS result"),
        (lambda data: data.update(status="fine"), "at status"),
        (lambda data: data["points"][0].update(index="x"), r"at points\.0\.index"),
    ],
)
def test_results_that_do_not_fit_are_refused(tmp_path: Path, change, message: str) -> None:
    data = json.loads(example_result().model_dump_json())
    change(data)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        load_result(path)


def test_missing_and_binary_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_result(tmp_path / "nothing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        load_result(tmp_path / "binary.json")


def test_importing_the_light_rooms_never_pulls_in_torch() -> None:
    code = (
        "import sys, sits, sits.spec.result, sits.spec.records, sits.bench.client\n"
        "print([m for m in ('torch', 'transformers', 'triton', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
