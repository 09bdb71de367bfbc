"""Scenarios: a whole benchmark in one YAML file, strict about what it does not know.

``sits bench -f FILE`` (or the name of a built-in one), ``--init NAME`` prints one to edit, ``--schema`` prints the
JSON schema for editors. Flags given on the command line win over the file.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sits.bench.scenario_model import (
    ConversationSettings,
    LoadSettings,
    MixPart,
    Scenario,
    SearchSettings,
    TargetSettings,
    TimeoutSettings,
    TraceSettings,
    WorkloadSettings,
)
from sits.errors import InputError

__all__ = [
    "ConversationSettings",
    "LoadSettings",
    "MixPart",
    "Scenario",
    "SearchSettings",
    "TargetSettings",
    "TimeoutSettings",
    "TraceSettings",
    "WorkloadSettings",
    "built_in_names",
    "built_in_text",
    "load_scenario",
    "parse_scenario",
    "schema_text",
]

BUILT_IN_FOLDER = Path(__file__).parent / "scenarios"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_TAGS = {"str", "int", "float", "bool", "constrained-str", "constrained-int", "constrained-float"}


def built_in_names() -> list[str]:
    """Names ``-f`` and ``--init`` know."""
    return sorted(path.stem for path in BUILT_IN_FOLDER.glob("*.yaml"))


def built_in_text(name: str) -> str:
    """The YAML of a built-in scenario. Raises ``InputError`` with the nearest name."""
    names = built_in_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(f"no built-in scenario {name!r}", f"{hint}Built in: {', '.join(names)}")
    return (BUILT_IN_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def load_scenario(name_or_path: str, environment: dict[str, str] | None = None) -> Scenario:
    """A built-in scenario by name, or a YAML file. Raises ``InputError`` naming the line and what is wrong.

    ``${VAR}`` and ``${VAR:-default}`` in values are replaced from the environment. Relative paths in a file are
    relative to the file.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml", ".json") or path.exists():
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"cannot read scenario {path}: {error.strerror}", _known()) from None
        except UnicodeDecodeError:
            raise InputError(f"scenario {path} is not UTF-8 text") from None
        return parse_scenario(text, str(path), environment, base=path.parent)
    return parse_scenario(built_in_text(name_or_path), name_or_path, environment)


def parse_scenario(
    text: str, where: str, environment: dict[str, str] | None = None, base: Path | None = None
) -> Scenario:
    """A scenario from YAML text; see :func:`load_scenario`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"scenario {where}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    except RecursionError:
        raise InputError(f"scenario {where} is nested too deeply") from None
    if not isinstance(data, dict):
        raise InputError(f"scenario {where} must be a mapping", "Print one to start from: sits bench --init chat")
    try:
        data = _substitute(data, os.environ if environment is None else environment, where)
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise InputError(_explain(error, where, node)) from None
    except RecursionError:
        raise InputError(f"scenario {where} refers to itself") from None
    if base is not None:
        _resolve_paths(scenario, base)
    return scenario


def schema_text() -> str:
    """JSON schema of a scenario file."""
    schema = Scenario.model_json_schema()
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1)


def _known() -> str:
    return f"Give a YAML file or one of {', '.join(built_in_names())}"


def _substitute(value: Any, environment: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, environment, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, environment, where) for item in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        found = environment.get(match[1], match[2])
        if found is None:
            raise InputError(
                f"scenario {where}: the environment variable {match[1]} is not set", "Or: ${VAR:-default}"
            )
        return str(found)

    return _VARIABLE.sub(replacement, value)


def _explain(error: ValidationError, where: str, node: yaml.Node | None) -> str:
    first = error.errors()[0]
    # The tags of unions (``str``, ``literal[...]``) are pydantic's own and mean nothing to the reader.
    path = [part for part in first["loc"] if not (isinstance(part, str) and (part in _TAGS or "[" in part))]
    line = _line_of(node, path)
    name = ".".join(str(part) for part in path) or "the top level"
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = _fields_at(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        text = (
            f"unknown setting; did you mean {near[0]!r}?" if near else f"unknown setting; known: {', '.join(known)}"
        )
    return f"scenario {where}, line {line}: {name}: {text}"


def _fields_at(path: list[Any]) -> list[str]:
    model: type[BaseModel] = Scenario
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        found = [one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)]
        model = found[0] if found else (MixPart if part == "mix" else model)
    return list(model.model_fields)


def _line_of(node: yaml.Node | None, path: list[Any]) -> int:
    line = 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _resolve_paths(scenario: Scenario, base: Path) -> None:
    def at(text: str | None) -> str | None:
        return str(base / text) if text else text

    target = scenario.target
    target.ca_file, target.tokenizer = at(target.ca_file), at(target.tokenizer)
    for part in [scenario.workload, *(scenario.workload.mix or {}).values()]:
        part.dataset = at(part.dataset)
        if part.trace is not None:
            part.trace.file = str(base / part.trace.file)
