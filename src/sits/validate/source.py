"""YAML with a memory: every value knows the file and line it came from.

Only the core of YAML 1.2 is read (``yes`` is a string, ``12:30`` is a string, ``2026-12-31`` is a string), because
a gate must not guess. ``${VAR}`` and ``${VAR:-default}`` are replaced in every scalar; ``$$`` is a plain dollar.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sits.errors import InputError

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 60


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration."""

    message: str
    mark: Mark
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.mark}: {self.message}" + (f". {self.hint}" if self.hint else "")


class ConfigError(InputError):
    """A configuration that cannot be used. ``problems`` lists everything found, each with its line."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


@dataclass(slots=True)
class Node:
    """A YAML value: a scalar, a ``dict[str, Node]`` or a ``list[Node]``. ``key`` is where its key stands."""

    value: Any
    mark: Mark
    key: Mark | None = None

    @property
    def place(self) -> Mark:
        return self.key or self.mark

    def plain(self) -> Any:
        """The value without its marks."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def get(self, key: str) -> Node | None:
        return self.value.get(key) if isinstance(self.value, dict) else None


def read_yaml(path: Path, shown_as: str | None = None, environment: Mapping[str, str] | None = None) -> Node:
    """Read one YAML file. Raises :class:`ConfigError` for anything that is not one plain YAML document."""
    shown = shown_as or str(path)
    here = Mark(shown)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        hint = "Write one with: sits-validate --init" if isinstance(error, FileNotFoundError) else None
        raise ConfigError([Problem(f"cannot read the configuration: {error.strerror}", here, hint)]) from None
    if len(data) > MAX_BYTES:
        raise ConfigError([Problem(f"larger than {MAX_BYTES} bytes; this is no configuration", here)])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError([Problem("not a UTF-8 text file", here)]) from None
    return parse_yaml(text, shown, environment)


def parse_yaml(text: str, shown: str, environment: Mapping[str, str] | None = None) -> Node:
    """Parse YAML text; ``shown`` is the file name used in messages."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark or error.context_mark
        mark = Mark(shown, where.line + 1, where.column + 1) if where else Mark(shown)
        lines = text.splitlines()
        variable = mark.line <= len(lines) and "${" in lines[mark.line - 1]
        hint = "Inside braces a variable must be quoted: {p99: '${NAME}'}" if variable else None
        raise ConfigError([Problem(f"not valid YAML: {error.problem or error.context}", mark, hint)]) from None
    except yaml.YAMLError as error:  # unreadable characters
        raise ConfigError([Problem(f"not valid YAML: {str(error).splitlines()[0]}", Mark(shown))]) from None
    except RecursionError:
        raise ConfigError([Problem(f"nested deeper than {MAX_DEPTH} levels", Mark(shown))]) from None
    if root is None:
        raise ConfigError([Problem("the file is empty", Mark(shown), "Write one with: sits-validate --init")])
    builder = _Builder(shown, os.environ if environment is None else environment)
    node = builder.build(root, 0)
    if builder.problems:
        raise ConfigError(builder.problems)
    return node


class _Builder:
    """Turns PyYAML's nodes into ours and collects what is wrong on the way."""

    def __init__(self, shown: str, environment: Mapping[str, str]):
        self.shown = shown
        self.environment = environment
        self.problems: list[Problem] = []
        self.count = 0

    def mark(self, node: Any) -> Mark:
        return Mark(self.shown, node.start_mark.line + 1, node.start_mark.column + 1)

    def build(self, node: Any, depth: int) -> Node:
        self.count += 1
        mark = self.mark(node)
        # Aliases share nodes, so a few lines can unfold without end.
        if depth > MAX_DEPTH or self.count > MAX_NODES:
            what = f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else "unfolds to too many values"
            raise ConfigError([Problem(f"{what} (an alias that contains itself?)", mark)])
        if node.id == "scalar":
            return Node(self.scalar(node, mark), mark)
        if node.id == "sequence":
            return Node([self.build(item, depth + 1) for item in node.value], mark)
        members: dict[str, Node] = {}
        for key_node, value_node in self.members(node, depth):
            key_mark = self.mark(key_node)
            if key_node.id != "scalar":
                self.problems.append(Problem("a key must be a plain word", key_mark))
                continue
            key = str(key_node.value)
            if key in members:
                first = members[key].place
                self.problems.append(Problem(f"'{key}' is given twice (first on line {first.line})", key_mark))
                continue
            child = self.build(value_node, depth + 1)
            child.key = key_mark
            members[key] = child
        return Node(members, mark)

    def members(self, node: Any, depth: int) -> Iterator[tuple[Any, Any]]:
        """The pairs of a mapping, with ``<<: *anchor`` merged in (own keys win)."""
        own = [pair for pair in node.value if pair[0].value != "<<" or pair[0].tag != "tag:yaml.org,2002:merge"]
        yield from own
        if len(own) == len(node.value):
            return
        names = {str(key.value) for key, _ in own}
        for key, value in node.value:
            if (key, value) in own:
                continue
            sources = value.value if value.id == "sequence" else [value]
            for source in sources:
                if source.id != "mapping" or depth > MAX_DEPTH:
                    self.problems.append(Problem("'<<' must point to a mapping", self.mark(key)))
                    continue
                for pair in self.members(source, depth + 1):
                    if str(pair[0].value) not in names:
                        names.add(str(pair[0].value))
                        yield pair

    def scalar(self, node: Any, mark: Mark) -> Any:
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
            self.problems.append(Problem(f"tag {node.tag} is not supported", mark))
            return None
        text, missing = interpolate(node.value, self.environment)
        for name in missing:
            hint = f"Set it, or write ${{{name}:-default}}"
            self.problems.append(Problem(f"environment variable {name} is not set", mark, hint))
        # Quoted or block text stays text, unless it is nothing but one variable: flow style forces those quotes.
        if node.style is not None and not _REFERENCE.fullmatch(node.value):
            return text
        return resolve_plain(text)


_TAGS = {"str", "int", "float", "bool", "null", "timestamp", "merge", "value"}
_REFERENCE = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")


def interpolate(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Replace ``${VAR}`` and ``${VAR:-default}``. Returns the text and the names that are missing."""
    missing: list[str] = []

    def replace(match: re.Match[str]) -> str:
        dollar, name, default = match.groups()
        if dollar:
            return "$"
        value = environment.get(name)
        if default is not None:
            return value or default
        if value is None:
            missing.append(name)
            return ""
        return value

    return _REFERENCE.sub(replace, text), missing


_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?\Z")


def resolve_plain(text: str) -> Any:
    """An unquoted scalar by the core schema of YAML 1.2: null, true, false, integer, finite float, else text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text) and math.isfinite(float(text)):
        return float(text)
    return text
