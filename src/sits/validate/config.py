"""From a file to a checked configuration: rules and waivers with their lines."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from sits.validate.config_tree import apply_profile, read_tree, with_presets
from sits.validate.rules.model import Rule, Settings, Severity, all_rules, find_rule, iter_names
from sits.validate.schema import config_schema
from sits.validate.schema_check import check, suggestion
from sits.validate.source import ConfigError, Mark, Node, Problem

DEFAULT_PATH = Path(".sits/config.yaml")


@dataclass(frozen=True, slots=True)
class Waiver:
    """An accepted violation of one rule, until a day."""

    rule: Rule
    owner: str
    reason: str
    expires: date
    mark: Mark
    metric: str | None = None
    points: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Config:
    """A checked configuration. ``base`` is the folder relative paths start from."""

    path: Path
    base: Path
    settings: list[Settings]
    waivers: list[Waiver]
    results: list[str] = field(default_factory=list)
    baselines: list[str] = field(default_factory=list)
    bench: dict[str, Any] = field(default_factory=dict)
    confidence: float = 0.95
    profile: str | None = None
    mark: Mark = field(default_factory=lambda: Mark("config"))
    bench_mark: Mark | None = None

    def uses(self, name: str) -> bool:
        return any(settings.rule.name == name for settings in self.settings)


def load_config(path: Path, profile: str | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Read, merge and check. Raises :class:`ConfigError` with every problem found."""
    environment = os.environ if environment is None else environment
    profile = profile or environment.get("SITS_PROFILE") or None
    root = read_tree(path, environment, [])
    problems = check(root, config_schema())
    if problems:
        raise ConfigError(_unique(problems))
    merged = apply_profile(root, profile)
    merged = with_presets(merged)
    return _build(path, merged, profile)


def base_folder(path: Path) -> Path:
    """Where relative result paths start: the folder that holds ``.sits``, else the file's own."""
    folder = path.parent
    return folder.parent if folder.name == ".sits" else folder


def _unique(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _texts(node: Node | None) -> list[str]:
    if node is None:
        return []
    return [item.value for item in node.value] if isinstance(node.value, list) else [node.value]


def _build(path: Path, root: Node, profile: str | None) -> Config:
    problems: list[Problem] = []
    confidence = root.get("confidence")
    config = Config(
        path=path,
        base=base_folder(path),
        settings=_settings(root, problems),
        waivers=_waivers(root, problems),
        results=_texts(root.get("result")),
        baselines=_texts(root.get("baseline")),
        confidence=confidence.value if confidence else 0.95,
        profile=profile,
        mark=root.mark,
    )
    bench = root.get("bench")
    if bench is not None:
        config.bench, config.bench_mark = bench.plain(), bench.place
    if not any(True for settings in config.settings if not settings.rule.default_on) and not problems:
        hint = "Name at least one under 'rules:', or a 'preset:'"
        if not (root.get("rules") and root.get("rules").value):  # type: ignore[union-attr]
            problems.append(Problem("there is no rule to judge by", root.mark, hint))
    if problems:
        raise ConfigError(_unique(problems))
    return config


def _settings(root: Node, problems: list[Problem]) -> list[Settings]:
    """Every use of a rule, in the order of the rule ids; rules that are always on are added."""
    default_inconclusive = root.get("inconclusive")
    default_no_data = root.get("no_data")
    given = root.get("rules")
    nodes: dict[str, Node] = given.value if given is not None else {}
    found: list[Settings] = []
    for rule in all_rules().values():
        node = nodes.get(rule.name)
        if node is None:
            if rule.default_on:
                node = Node({}, root.mark)
            else:
                continue
        uses = node.value if isinstance(node.value, list) else [node]
        for use in uses:
            if use.value is False:
                continue
            members: dict[str, Node] = use.value if isinstance(use.value, dict) else {}
            plain = {key: child.plain() for key, child in members.items()}
            severity = plain.pop("severity", rule.severity.value)
            inconclusive = plain.pop("inconclusive", default_inconclusive.value if default_inconclusive else "warn")
            no_data = plain.pop("no_data", default_no_data.value if default_no_data else None)
            points = plain.pop("points", {})
            plain.pop("note", None)
            if severity == "off":
                continue
            _check_use(rule, plain, use, problems)
            place = use.place if use.key or node is use else use.mark
            found.append(Settings(rule, Severity(severity), plain, place, inconclusive, no_data, points))
    return found


def _check_use(rule: Rule, plain: dict[str, Any], node: Node, problems: list[Problem]) -> None:
    """What the schema cannot say: a rule needs a bound, and its bounds must not contradict each other."""
    for name in rule.required:
        if name not in plain:
            problems.append(Problem(f"rule {rule.name} lacks '{name}'", node.place, f"For example {rule.example}"))
    if rule.bound and not any(key in rule.bound or ("p" in rule.bound and key[:1] == "p") for key in plain):
        problems.append(Problem(f"rule {rule.name} has no bound", node.place, f"For example {rule.example}"))
    for key in plain:
        if rule.patterns and key.startswith("p") and key[1:2].isdigit() and not 0 < float(key[1:]) < 100:
            problems.append(Problem(f"{key} is no percentile", node.place, "Percentiles lie between 0 and 100"))
    low, high = plain.get("min"), plain.get("max")
    numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
    if numbers and low > high:  # type: ignore[operator]
        problems.append(Problem(f"rule {rule.name}: min {low} is more than max {high}", node.place))


def _waivers(root: Node, problems: list[Problem]) -> list[Waiver]:
    found: list[Waiver] = []
    node = root.get("waivers")
    for item in node.value if node is not None else []:
        plain = item.plain()
        rule = find_rule(plain["rule"])
        if rule is None:
            hint = suggestion(plain["rule"], list(iter_names()))
            problems.append(Problem(f"a waiver names the unknown rule '{plain['rule']}'", item.mark, hint))
            continue
        try:
            expires = date.fromisoformat(plain["expires"])
        except ValueError:
            problems.append(
                Problem(f"'{plain['expires']}' is no date", item.value["expires"].mark, "Write YYYY-MM-DD")
            )
            continue
        found.append(
            Waiver(
                rule,
                plain["owner"],
                plain["reason"],
                expires,
                item.mark,
                plain.get("metric"),
                plain.get("points", {}),
            )
        )
    return found


def expand_paths(patterns: list[str], base: Path) -> list[Path]:
    """Files named directly, by folder or by pattern, relative to ``base``; a pattern without a match stays."""
    found: list[Path] = []
    for text in patterns:
        path = Path(text) if Path(text).is_absolute() else base / text
        if any(sign in text for sign in "*?["):
            matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
            found += matches or [path]
        else:
            found.append(path)
    return list(dict.fromkeys(found))
