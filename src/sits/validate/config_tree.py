"""The tree of a configuration before it is checked: files over what they extend, profiles, presets.

Order, later wins: presets, the files of ``extends`` from left to right, the file itself, the profile. Mappings are
merged key by key, anything else is replaced; waivers add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sits.validate.presets import PRESETS
from sits.validate.rules.model import find_rule
from sits.validate.schema_check import suggestion
from sits.validate.source import ConfigError, Mark, Node, Problem, read_yaml

_MAX_EXTENDS = 20


def read_tree(path: Path, environment: Mapping[str, str], chain: list[Path]) -> Node:
    """A file merged over what it extends."""
    node = read_yaml(path, environment=environment)
    here = Mark(str(path))
    if not isinstance(node.value, dict):
        problem = Problem(
            "the configuration must be a mapping of keys", node.mark, "Write one with: sits-validate --init"
        )
        raise ConfigError([problem])
    _name_rules(node)
    extends = node.get("extends")
    if extends is None:
        return node
    entries = extends.value if isinstance(extends.value, list) else [extends]
    chain = [*chain, path.resolve()]
    merged: Node | None = None
    for entry in entries:
        if not isinstance(entry.value, str) or not entry.value:
            raise ConfigError([Problem("'extends' must name a file", entry.mark)])
        parent = path.parent / entry.value
        if parent.resolve() in chain:
            steps = " -> ".join(p.name for p in [*chain, parent.resolve()])
            raise ConfigError([Problem(f"'extends' runs in a circle: {steps}", entry.mark)])
        if len(chain) > _MAX_EXTENDS:
            raise ConfigError([Problem(f"'extends' is more than {_MAX_EXTENDS} files deep", entry.mark)])
        try:
            base = read_tree(parent, environment, chain)
        except ConfigError as error:
            if error.problems[0].mark == Mark(str(parent)) and not parent.exists():
                raise ConfigError(
                    [Problem(f"'extends' names {entry.value}, which does not exist", entry.mark)]
                ) from None
            raise
        merged = base if merged is None else merge(merged, base)
    assert merged is not None
    result = merge(merged, node)
    result.mark = here
    return result


def _name_rules(node: Node) -> None:
    """Rule keys become rule names, so that ``SITS-C001`` in one file and ``ttft`` in another are the same rule."""
    profiles = node.get("profiles")
    bodies = [node]
    if profiles is not None and isinstance(profiles.value, dict):
        bodies += list(profiles.value.values())
    for body in bodies:
        rules = body.get("rules")
        if rules is None or not isinstance(rules.value, dict):
            continue
        renamed: dict[str, Node] = {}
        for key, child in rules.value.items():
            rule = find_rule(key)
            name = rule.name if rule and (key == rule.id or key == rule.name) else key
            if name in renamed:
                problem = Problem(
                    f"rule {name} is given twice (first on line {renamed[name].place.line})", child.place
                )
                raise ConfigError([problem])
            renamed[name] = child
        rules.value = renamed


def merge(base: Node, over: Node) -> Node:
    """``over`` on top of ``base``; the result keeps the place of whichever value won."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    members = dict(base.value)
    for key, child in over.value.items():
        if (
            key == "waivers"
            and key in members
            and isinstance(members[key].value, list)
            and isinstance(child.value, list)
        ):
            members[key] = Node([*members[key].value, *child.value], child.mark, child.key)
        elif key in members:
            members[key] = merge(members[key], child)
        else:
            members[key] = child
    return Node(members, over.mark, over.key)


def apply_profile(root: Node, profile: str | None) -> Node:
    """The file with the settings of a profile on top."""
    if profile is None:
        return root
    profiles = root.get("profiles")
    known = list(profiles.value) if profiles is not None else []
    if profiles is None or profile not in known:
        mark = profiles.place if profiles is not None else root.mark
        raise ConfigError([Problem(f"there is no profile '{profile}'", mark, suggestion(profile, known))])
    return merge(root, profiles.value[profile])


def with_presets(root: Node) -> Node:
    """The file on top of the presets it names."""
    preset = root.get("preset")
    if preset is None:
        return root
    entries = preset.value if isinstance(preset.value, list) else [preset]
    merged: Node | None = None
    for entry in entries:
        if entry.value not in PRESETS:
            problem = Problem(
                f"there is no preset '{entry.value}'", entry.mark, suggestion(str(entry.value), list(PRESETS))
            )
            raise ConfigError([problem])
        rules = _as_node({"rules": PRESETS[entry.value][1]}, entry.mark)
        merged = rules if merged is None else merge(merged, rules)
    return merge(merged, root) if merged is not None else root


def _as_node(value: Any, mark: Mark) -> Node:
    if isinstance(value, dict):
        return Node({key: _as_node(child, mark) for key, child in value.items()}, mark)
    return Node(value, mark)
