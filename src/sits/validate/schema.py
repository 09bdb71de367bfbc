"""The JSON Schema of the configuration, put together from the rules: what ``--schema`` prints and what is checked."""

from __future__ import annotations

from functools import cache
from typing import Any

from sits.validate.presets import PRESETS
from sits.validate.rules.model import Rule, all_rules

SCHEMA_ID = "https://sits-llm.invalid/schema/sits-validate-1.json"

_TEXTS = {"type": ["string", "array"], "minLength": 1, "minItems": 1, "items": {"type": "string", "minLength": 1}}
_NUMBERS = {"type": ["number", "array"], "minItems": 1, "items": {"type": "number"}}
INCONCLUSIVE = {
    "description": "What a measured but undecided figure counts as: critical, warn (default) or unjudged (exit 3)",
    "type": "string",
    "enum": ["critical", "warn", "unjudged"],
}
NO_DATA = {
    "description": "What a rule without data counts as; default unjudged (exit 3) for a critical rule, warn for "
    "others",
    "type": "string",
    "enum": ["critical", "warn", "unjudged", "skip"],
}
POINTS = {
    "description": "Which load points the rule looks at; all when left out",
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        "concurrency": {**_NUMBERS, "description": "Load points with this concurrency"},
        "rate": {**_NUMBERS, "description": "Load points with this request rate"},
        "index": {**_NUMBERS, "description": "Load points by position, from 0"},
        "which": {"description": "all, last or knee", "type": "string", "enum": ["all", "last", "knee"]},
    },
}
COMMON: dict[str, Any] = {
    "severity": {
        "description": "critical (exit 1), warn (exit 2) or off",
        "type": "string",
        "enum": ["critical", "warn", "off"],
    },
    "inconclusive": INCONCLUSIVE,
    "no_data": NO_DATA,
    "points": POINTS,
    "note": {"description": "Why the rule is set like this; shown in reports", "type": "string"},
}
WAIVER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["rule", "owner", "reason", "expires"],
    "properties": {
        "rule": {"description": "Id or name of the rule that is waived", "type": "string", "minLength": 1},
        "owner": {"description": "Who answers for the waiver", "type": "string", "minLength": 1},
        "reason": {"description": "Why it is acceptable for now", "type": "string", "minLength": 1},
        "expires": {
            "description": "Last day it holds, as YYYY-MM-DD; after it the waiver itself is a violation",
            "type": "string",
            "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
        },
        "metric": {"description": "Only this figure, as ttft.p99", "type": "string", "minLength": 1},
        "points": POINTS,
    },
}


def use_schema(rule: Rule) -> dict[str, Any]:
    """The parameters of one use of a rule. It names no type: object keywords say nothing about lists and booleans."""
    settings: dict[str, Any] = {
        "description": f"{rule.id} {rule.name}: {rule.summary}",
        "additionalProperties": False,
        "properties": {**rule.parameters, **{name: {"$ref": f"#/$defs/{name}"} for name in COMMON}},
    }
    if rule.patterns:
        settings["patternProperties"] = rule.patterns
    return settings


def rule_schema(rule: Rule) -> dict[str, Any]:
    """A mapping of parameters, a list of such mappings (one use of the rule each), or true / false."""
    use = {"$ref": f"#/$defs/{rule.id}"}
    return {**use, "type": ["object", "array", "boolean"], "items": {**use, "type": "object"}, "minItems": 1}


def preset_names() -> list[str]:
    return sorted(PRESETS)


@cache
def config_schema() -> dict[str, Any]:
    """The whole schema (draft 2020-12)."""
    rules: dict[str, Any] = {}
    definitions: dict[str, Any] = {"waiver": WAIVER, **COMMON}
    for rule in all_rules().values():
        definitions[rule.id] = use_schema(rule)
        definitions[rule.name] = rule_schema(rule)
        rules[rule.name] = rules[rule.id] = {"$ref": f"#/$defs/{rule.name}"}
    definitions["rules"] = {
        "description": "Rules by name or id",
        "type": "object",
        "additionalProperties": False,
        "properties": rules,
    }
    body: dict[str, Any] = {
        "result": {**_TEXTS, "description": "Result files (or their folders, or patterns) to judge"},
        "baseline": {**_TEXTS, "description": "Result files (or folders, or patterns) to compare with"},
        "preset": {
            "description": "Ready sets of rules, see sits-validate --list-presets",
            "type": ["string", "array"],
            "minLength": 1,
            "minItems": 1,
            "items": {"type": "string", "enum": preset_names()},
        },
        "confidence": {
            "description": "Confidence of bounds, one-sided; default 0.95",
            "type": "number",
            "exclusiveMinimum": 0.5,
            "maximum": 0.9999,
        },
        "inconclusive": INCONCLUSIVE,
        "no_data": NO_DATA,
        "rules": {"$ref": "#/$defs/rules"},
        "waivers": {"description": "Accepted violations", "type": "array", "items": {"$ref": "#/$defs/waiver"}},
        "bench": {
            "description": "What --run measures: options of sits bench by their long names",
            "type": "object",
            "additionalProperties": {
                "type": ["string", "number", "boolean", "array"],
                "items": {"type": ["string", "number"]},
            },
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Configuration of sits-validate",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "$schema": {"type": "string"},
            "version": {"description": "Version of this format", "type": "integer", "enum": [1]},
            "extends": {**_TEXTS, "description": "Files this one builds on; relative to this file"},
            **body,
            "profiles": {
                "description": "Changes per environment, chosen with --profile",
                "type": "object",
                "additionalProperties": {"type": "object", "additionalProperties": False, "properties": body},
            },
        },
        "$defs": definitions,
    }
