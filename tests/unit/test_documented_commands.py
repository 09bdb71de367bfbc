"""Commands shown in the documentation exist, take the options shown, and use the mock server's own port."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from sits.cli.main import cli
from sits.cli.validate import command as gate

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown_commands(text: str) -> list[list[str]]:
    """Words of every command line in the fenced blocks of a page that starts sits or sits-validate."""
    found = []
    for block in re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a quote that runs over several lines
                continue
            one: list[str] = []
            for word in [*words, "&&"]:
                if word in ("&&", "&", "|", "||", ";"):
                    found += [one] if one and one[0] in ("sits", "sits-validate") else []
                    one = []
                else:
                    one.append(word)
    return found


def options_of(words: list[str]) -> tuple[str, set[str]]:
    """The command that ``words`` name and its options."""
    command: click.Command = gate if words[0] == "sits-validate" else cli
    name, context = words[0], click.Context(command)
    for word in words[1:]:
        if not isinstance(command, click.Group) or word.startswith("-"):
            break
        inner = command.get_command(context, word)
        if inner is None:
            assert command is not cli, f"no command {name} {word}"
            break
        command, name = inner, f"{name} {word}"
    return name, {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_take_the_options_shown(page: Path) -> None:
    for words in shown_commands(page.read_text(encoding="utf-8")):
        name, known = options_of(words)
        for word in words[1:]:
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in known, f"{' '.join(words)}: {name} has no {word}"


def test_the_readme_shows_commands() -> None:
    assert len(shown_commands((ROOT / "README.md").read_text(encoding="utf-8"))) >= 10


def test_the_mock_server_is_asked_where_it_listens() -> None:
    from sits.cli.mock_server_command import command

    port = next(one.default for one in command.params if one.name == "port")
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if "mock-server" in line and "--endpoint" in line:
                assert f":{port}" in line, line
