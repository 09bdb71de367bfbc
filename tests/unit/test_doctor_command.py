"""``sits doctor`` and its subcommand on a machine where most things are missing."""

from __future__ import annotations

import sys

from click.testing import CliRunner

from sits.cli.doctor_command import command


def test_it_says_what_is_missing_and_the_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("SITS_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(command)
    assert done.exit_code == 0
    assert "pip install 'sits-llm[engine]'" in done.stdout
    assert "sits models fetch" in done.stdout


def test_a_filled_cache_is_named(monkeypatch, tmp_path):
    (tmp_path / "models/tiny").mkdir(parents=True)
    monkeypatch.setenv("SITS_CACHE", str(tmp_path))
    assert "tiny" in CliRunner().invoke(command).stdout


def test_the_telemetry_part_loads_only_when_called():
    sys.modules.pop("sits.cli.doctor_telemetry", None)
    assert "telemetry" in CliRunner().invoke(command, ["--help"]).stdout
    done = CliRunner().invoke(command, ["telemetry", "--no-measure"])
    assert done.exit_code == 0
    assert "collector" in done.stdout
