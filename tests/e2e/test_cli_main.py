"""The ``sits`` command itself: start, help, wrong usage. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import sits


def sits_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sits", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def test_version_imports_nothing_heavy() -> None:
    done = sits_command("--version")
    assert done.returncode == 0
    assert done.stdout.strip() == f"sits {sits.__version__}"
    code = (
        "import sys; sys.argv = ['sits', '--version']\n"
        "from sits.cli.main import run, cli\n"
        "assert run(cli, 'sits', ['--version']) == 0\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_help_lists_every_command_that_is_there() -> None:
    done = sits_command("--help")
    assert done.returncode == 0
    assert "LLM inference" in done.stdout


def test_an_unknown_command_is_wrong_usage() -> None:
    done = sits_command("bnech")
    assert done.returncode == 2
    assert "bnech" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_is_wrong_usage() -> None:
    done = sits_command("--nope")
    assert done.returncode == 2
    assert "--nope" in done.stderr
