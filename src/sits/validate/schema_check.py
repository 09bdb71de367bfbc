"""Checks a configuration against its JSON Schema and says where, in words, with the nearest known key.

Covers the keywords our schema uses (listed in ``KEYWORDS``); tests hold it equal to the ``jsonschema`` package,
which is too heavy for a gate that must start at once.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from sits.validate.source import Node, Problem

KEYWORDS = {
    "$defs", "$id", "$ref", "$schema", "additionalProperties", "default", "description", "enum", "examples",
    "exclusiveMinimum", "items", "maximum", "minItems", "minLength", "minProperties", "minimum", "pattern",
    "patternProperties", "properties", "required", "title", "type",
}  # fmt: skip

_NAMES = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
_WANTED = {
    "object": "a mapping", "array": "a list", "string": "text", "boolean": "true or false", "null": "nothing",
    "number": "a number", "integer": "a whole number",
}  # fmt: skip


def check(node: Node, schema: dict[str, Any]) -> list[Problem]:
    """Everything in ``node`` that the schema forbids, in the order of the file."""
    problems: list[Problem] = []
    _check(node, schema, schema, "", problems)
    return sorted(problems, key=lambda problem: (problem.mark.file, problem.mark.line, problem.mark.column))


def nearest(word: str, known: list[str]) -> str | None:
    """The known word a typist most likely meant."""
    folded = {name.lower().replace("_", "-"): name for name in known}
    key = word.lower().replace("_", "-")
    matches = difflib.get_close_matches(key, list(folded), n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def suggestion(word: str, known: list[str]) -> str:
    """``did you mean X?``, or the list of what is known when nothing is near."""
    best = nearest(word, known)
    if best:
        return f"Did you mean '{best}'?"
    return "Known here: " + ", ".join(sorted(known)) if known else "Nothing is expected here"


def _has_type(value: Any, name: str) -> bool:
    if name == "object":
        return isinstance(value, dict)
    if name == "array":
        return isinstance(value, list)
    if name == "string":
        return isinstance(value, str)
    if name == "boolean":
        return isinstance(value, bool)
    if name == "null":
        return value is None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return name == "number" or isinstance(value, int) or value.is_integer()


def _check(node: Node, schema: dict[str, Any], root: dict[str, Any], path: str, out: list[Problem]) -> None:
    while "$ref" in schema:  # keywords beside a reference hold as well; ours never contradict it
        beside = {key: item for key, item in schema.items() if key != "$ref"}
        schema = {**root["$defs"][schema["$ref"].removeprefix("#/$defs/")], **beside}
    value = node.value
    here = f"'{path}'" if path else "the configuration"
    types = schema.get("type")
    if types is not None:
        types = [types] if isinstance(types, str) else types
        if not any(_has_type(value, name) for name in types):
            wanted = " or ".join(_WANTED[name] for name in types)
            got = _NAMES.get(type(value)) or f"the number {value}"
            if isinstance(value, str):
                got = f"'{value}'"
            elif isinstance(value, bool):
                got = str(value).lower()
            out.append(Problem(f"{here} must be {wanted}, not {got}", node.mark, schema.get("description")))
            return
    if "enum" in schema and value not in schema["enum"]:
        known = [str(item) for item in schema["enum"]]
        out.append(Problem(f"{here} cannot be '{value}'", node.mark, suggestion(str(value), known)))
        return
    if isinstance(value, str):
        _check_text(value, schema, here, node, out)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(value, schema, here, node, out)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            out.append(Problem(f"{here} needs at least {schema['minItems']} entries", node.mark))
        for index, item in enumerate(value):
            _check(item, schema.get("items", {}), root, f"{path}[{index}]", out)
    elif isinstance(value, dict):
        _check_members(value, schema, root, path, here, node, out)


def _check_text(value: str, schema: dict[str, Any], here: str, node: Node, out: list[Problem]) -> None:
    if len(value) < schema.get("minLength", 0):
        out.append(Problem(f"{here} must not be empty", node.mark, schema.get("description")))
    elif "pattern" in schema and not re.search(schema["pattern"], value):
        out.append(Problem(f"{here} cannot be '{value}'", node.mark, schema.get("description")))


def _check_number(value: float, schema: dict[str, Any], here: str, node: Node, out: list[Problem]) -> None:
    if "minimum" in schema and value < schema["minimum"]:
        out.append(Problem(f"{here} is {value}, the least allowed is {schema['minimum']}", node.mark))
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        out.append(Problem(f"{here} is {value}, it must be more than {schema['exclusiveMinimum']}", node.mark))
    if "maximum" in schema and value > schema["maximum"]:
        hint = "Write a share as 0.03 or 3%" if schema["maximum"] == 1 else None
        out.append(Problem(f"{here} is {value}, the most allowed is {schema['maximum']}", node.mark, hint))


def _check_members(
    value: dict[str, Node], schema: dict[str, Any], root: dict[str, Any], path: str, here: str, node: Node,
    out: list[Problem],
) -> None:  # fmt: skip
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    extra = schema.get("additionalProperties", True)
    for name in schema.get("required", []):
        if name not in value:
            out.append(Problem(f"{here} lacks '{name}'", node.place, properties.get(name, {}).get("description")))
    if len(value) < schema.get("minProperties", 0):
        out.append(Problem(f"{here} is empty", node.place, schema.get("description")))
    for key, child in value.items():
        inner = f"{path}.{key}" if path else key
        known = False
        if key in properties:
            known = True
            _check(child, properties[key], root, inner, out)
        for pattern, sub in patterns.items():
            if re.search(pattern, key):
                known = True
                _check(child, sub, root, inner, out)
        if known:
            continue
        if extra is False:
            names = list(properties) + [p.get("title", "") for p in patterns.values() if p.get("title")]
            where = f"in '{path}'" if path else "at the top"
            out.append(Problem(f"unknown key '{key}' {where}", child.place, suggestion(key, names)))
        elif isinstance(extra, dict):
            _check(child, extra, root, inner, out)
