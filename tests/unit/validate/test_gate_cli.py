"""The command: exit codes that are never confused, reports written whole, standard output clean, a fast start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sits
from sits.cli import validate

TTFT = "rules:\n  ttft: {p50: 150 ms}\n"


@pytest.fixture
def gate(workshop: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in the workshop's folder: ``gate("--result", "x")`` -> (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = validate.run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    workshop.config("result: good\n" + TTFT, ".sits/config.yaml")
    workshop.run("good", requests=40)
    workshop.run("slow", requests=40, ttft=500)
    return run


def test_exit_0_when_all_pass(gate: Any) -> None:
    code, out, err = gate()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("PASS: ")


def test_exit_1_on_a_critical_violation(gate: Any) -> None:
    code, out, _ = gate("--result", "slow")
    assert code == 1
    assert "CRITICAL: 1 critical violation" in out


def test_exit_2_on_warnings_only_and_fail_on_changes_it(gate: Any, workshop: Any) -> None:
    workshop.config("result: slow\nrules:\n  ttft: {p50: 150 ms, severity: warn}\n", "warn.yaml")
    assert gate("-c", "warn.yaml")[0] == 2
    assert gate("-c", "warn.yaml", "--fail-on", "warn")[0] == 1
    assert gate("-c", "warn.yaml", "--fail-on", "never")[0] == 0
    assert gate("--result", "slow", "--fail-on", "never")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option"],
        ["--report-format", "html"],
        ["--fail-on", "sometimes"],
        ["stray.json"],
        ["--config", "nowhere.yaml"],
        ["--result", "nowhere"],
        ["--baseline", "nowhere"],
        ["--profile", "nowhere"],
        ["--explain", "SITS-C999"],
        ["--format", "json", "--format", "junit"],
        ["--output", "report.unknown"],
        ["--format", "json", "--output", "a", "--format", "junit", "--output", "a"],
        ["--format", "json", "--output", "good"],
        ["--run"],
        ["--run", "--result", "good"],
        ["--result"],
    ],
)
def test_exit_3_when_it_could_not_judge(gate: Any, arguments: list[str]) -> None:
    code, out, err = gate(*arguments)
    assert code == 3
    assert "Traceback" not in out + err
    assert out + err


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "nul", "\0\1", '{"schema_version": "9.0"}', '{"schema_version": "1.0"}']
)
def test_a_corrupt_result_is_3(gate: Any, workshop: Any, content: str) -> None:
    (workshop.folder / "bad.json").write_text(content)
    code, out, _ = gate("--result", "bad.json")
    assert code == 3
    assert "COULD NOT JUDGE" in out


def test_truncated_records_are_not_a_pass(gate: Any, workshop: Any) -> None:
    side = workshop.folder / "good" / "records.jsonl.gz"
    side.write_bytes(side.read_bytes()[:-200])
    assert gate()[0] in (1, 3)


def test_no_data_for_a_critical_rule_is_3_and_for_a_warning_2(gate: Any, workshop: Any) -> None:
    workshop.config("result: good\nrules:\n  quality: {max_kl: 0.1}\n", "q.yaml")
    assert gate("-c", "q.yaml")[0] == 3
    workshop.config("result: good\nrules:\n  memory: {max: 1 GB}\n", "m.yaml")
    assert gate("-c", "m.yaml")[0] == 2


def test_a_violation_outranks_what_could_not_be_judged(gate: Any, workshop: Any) -> None:
    workshop.config("result: slow\nrules:\n  ttft: {p50: 150 ms}\n  quality: {max_kl: 0.1}\n", "both.yaml")
    code, out, _ = gate("-c", "both.yaml")
    assert code == 1
    assert "could not be judged" in out


def test_a_crash_still_writes_every_report_and_exits_3(
    gate: Any, workshop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sits.validate import evaluate

    monkeypatch.setattr(evaluate, "evaluate", lambda *_: 1 // 0)
    code, out, _ = gate("--format", "json", "--output", "r/report.json", "--format", "junit", "--output", "r/j.xml")
    assert code == 3
    data = json.loads((workshop.folder / "r/report.json").read_text())
    assert data["verdict"] == "unjudged"
    assert "ZeroDivisionError" in data["problems"][0]["message"]
    assert "<error" in (workshop.folder / "r/j.xml").read_text()
    assert "Traceback" not in out


def test_reports_are_written_for_a_broken_configuration_too(gate: Any, workshop: Any) -> None:
    workshop.config("rulez: 1\n", "bad.yaml")
    code, _, _ = gate("-c", "bad.yaml", "-f", "json", "-o", "report.json", "-f", "codequality", "-o", "cq.json")
    assert code == 3
    problem = json.loads((workshop.folder / "report.json").read_text())["problems"][0]
    assert (problem["file"], problem["line"]) == ("bad.yaml", 1)
    assert json.loads((workshop.folder / "cq.json").read_text())[0]["severity"] == "blocker"


def test_an_output_is_replaced_whole_or_left_alone(gate: Any, workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = workshop.folder / "report.json"
    target.write_text("old")
    real = os.replace

    def full(source: Any, destination: Any) -> None:
        if Path(destination).name == "report.json":
            raise OSError(28, "No space left on device")
        real(source, destination)

    monkeypatch.setattr(os, "replace", full)
    code, _, err = gate("-f", "json", "-o", "report.json")
    assert code == 3
    assert "No space left on device" in err
    assert target.read_text() == "old"
    assert [path.name for path in workshop.folder.glob(".report*")] == []


def test_standard_output_is_only_the_report(gate: Any) -> None:
    code, out, err = gate("--report-format", "json", "--result", "slow")
    assert code == 1
    assert json.loads(out)["exit_code"] == 1
    assert "CRITICAL" in err


def test_formats_and_outputs_pair_in_order(gate: Any, workshop: Any) -> None:
    code, out, _ = gate("-f", "markdown", "-f", "json", "-o", "a.json", "-f", "sarif", "-o", "b.json", "-o", "c.xml")
    assert code == 0
    assert out.startswith("### ")
    read = workshop.folder
    assert "sits_validate" in json.loads((read / "a.json").read_text())
    assert json.loads((read / "b.json").read_text())["version"] == "2.1.0"
    assert (read / "c.xml").read_text().startswith("<?xml")


def test_specified_form_of_the_command(gate: Any, workshop: Any) -> None:
    assert gate("--config", ".sits/config.yaml", "--report-format", "json", "--output", "report.json")[0] == 0
    assert json.loads((workshop.folder / "report.json").read_text())["verdict"] == "pass"


def test_init_writes_a_configuration_that_passes_on_its_own_result(gate: Any, workshop: Any) -> None:
    code, out, _ = gate("--init", "--result", "good", "-c", "new/.sits/config.yaml")
    assert code == 0
    assert "20% above" in out
    text = (workshop.folder / "new/.sits/config.yaml").read_text()
    assert "p99" not in text.split("rules:")[1].split("# Compare")[0].replace("prove no p99", "")  # 40 requests
    assert gate("-c", "new/.sits/config.yaml")[0] == 0
    assert gate("-c", "new/.sits/config.yaml", "--result", "slow")[0] == 1
    assert gate("--init", "-c", "new/.sits/config.yaml")[0] == 3  # never overwrites


def test_init_binds_only_the_load_point_it_has_measured_well(gate: Any, workshop: Any) -> None:
    records = workshop.records(40, point=0) + workshop.records(400, point=1)
    workshop.run("sweep", records=records, change=lambda result: setattr(result.points[0], "concurrency", 1))
    assert gate("--init", "--result", "sweep", "-c", "new/.sits/config.yaml")[0] == 0
    assert gate("-c", "new/.sits/config.yaml")[0] == 0  # 40 requests could not prove an error rate under 1%


def test_init_without_anything_writes_a_runnable_template(
    workshop: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sits.validate.init._PORTS", ())
    assert validate.run(["--init"]) == 0
    assert "--run" in capsys.readouterr().out
    assert validate.run(["--check-config"]) == 0
    (workshop.folder / ".sits/config.yaml").unlink()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gpu7:8000/v1")
    assert validate.run(["--init"]) == 0
    assert 'endpoint: "http://gpu7:8000/v1"' in (workshop.folder / ".sits/config.yaml").read_text()


def test_check_config_judges_only_the_file(gate: Any, workshop: Any) -> None:
    workshop.config("result: missing\nrules:\n  ttft: {p50: 1}\n", "a.yaml")
    workshop.config("rulez: 1\n", "b.yaml")
    assert gate("--check-config", "a.yaml")[0] == 0
    code, _, err = gate("--check-config", "a.yaml", "b.yaml")
    assert code == 3
    assert "b.yaml:1:1" in err


def test_lists_and_explanations(gate: Any) -> None:
    assert "SITS-C001  ttft" in gate("--list-rules")[1]
    assert "mlperf/server/llama-2-70b" in gate("--list-presets")[1]
    for word in ("SITS-C010", "sits-c010", "regression"):
        code, out, _ = gate("--explain", word)
        assert code == 0
        assert out.startswith("SITS-C010 regression")
    assert json.loads(gate("--schema")[1])["title"] == "Configuration of sits-validate"
    assert gate("--help")[0] == 0
    assert gate("--version")[0] == 0


def test_it_imports_no_torch_and_little_else(workshop: Any) -> None:
    workshop.config("result: good\n" + TTFT, ".sits/config.yaml")
    workshop.run("good", requests=40)
    script = (
        "import sys; from sits.cli.validate import run; code = run(['-f', 'sarif', '-o', 'x.sarif']);"
        "heavy = [m for m in ('torch', 'scipy', 'rich', 'transformers', 'jsonschema', 'uvloop') if m in sys.modules];"
        "own = [m for m in sys.modules if m.startswith(('sits.bench', 'sits.engine', 'sits.models', "
        "'sits.telemetry'))];"
        "print(code, heavy, own)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(sits.__file__).parents[1])},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0 [] []"


def test_run_hands_the_bench_section_to_sits_bench(gate: Any, workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    from sits.cli import bench_command

    seen: dict[str, Any] = {}

    @click.command()
    @click.option("--model")
    @click.option("--concurrency")
    @click.option("--quick", is_flag=True)
    @click.option("--header", multiple=True)
    @click.option("--out")
    def fake(**values: Any) -> int:
        click.echo("a scorecard that must not spoil the report")
        seen.update(values)
        if values["model"] != "broken":
            workshop.run(Path(values["out"]).name, requests=40)
        return 0 if values["model"] == "m" else 3

    monkeypatch.setattr(bench_command, "command", fake)
    bench = "bench: {model: m, concurrency: [1, 4], quick: true, header: [A=1, B=2], out: fresh}\n"
    workshop.config(bench + TTFT, "run.yaml")
    code, out, err = gate("-c", "run.yaml", "--run", "-f", "json")
    assert (code, json.loads(out)["verdict"]) == (0, "pass"), err
    assert seen["concurrency"] == "1,4"
    assert seen["quick"] is True
    assert seen["header"] == ("A=1", "B=2")
    workshop.config("bench: {model: broken}\n" + TTFT, "run.yaml")
    assert gate("-c", "run.yaml", "--run")[0] == 3
    workshop.config("bench: {modle: m}\n" + TTFT, "run.yaml")
    code, out, _ = gate("-c", "run.yaml", "--run")
    assert code == 3
    assert "run.yaml:1:1: sits bench has no option 'modle'" in out
    assert "Did you mean 'model'?" in out
