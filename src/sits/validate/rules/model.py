"""What a rule is, what it may find, and the registry of all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sits.validate.source import Mark

if TYPE_CHECKING:
    from sits.validate.context import Context


class Severity(StrEnum):
    CRITICAL = "critical"
    WARN = "warn"


class Outcome(StrEnum):
    """What a rule says about one measured thing."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"  # measured, but the interval covers the bound
    NO_DATA = "no_data"  # nothing to judge by
    INVALID = "invalid"  # the two sides cannot be compared
    NOT_APPLICABLE = "not_applicable"
    ERROR = "error"  # the rule itself broke


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement. ``margin`` is the distance to the bound as a share of it; negative means violated."""

    outcome: Outcome
    message: str
    rule_id: str = ""
    rule_name: str = ""
    severity: Severity = Severity.CRITICAL
    metric: str | None = None
    measured: float | None = None
    bound: float | None = None
    unit: str = ""
    margin: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    n: int | None = None
    scope: str = ""  # which load point, which result
    evidence: str | None = None  # the file the figure came from
    hint: str | None = None
    treated_as: str = ""  # pass | warn | critical | unjudged | waived | skipped: set by the verdict
    waived_by: str | None = None
    mark: Mark | None = None

    def with_(self, **changes: Any) -> Finding:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Settings:
    """One use of a rule in the configuration: its parameters (checked against the schema) and its place."""

    rule: Rule
    severity: Severity
    parameters: dict[str, Any]
    mark: Mark
    inconclusive: str = "warn"
    no_data: str | None = None
    points: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.parameters.get(name, default)


Evaluate = Callable[["Context", Settings], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A check with a stable id. ``parameters`` are JSON Schema properties; ``patterns`` are patternProperties."""

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    example: str
    evaluate: Evaluate
    parameters: dict[str, Any] = field(default_factory=dict)
    patterns: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()  # at least one of these must be given ("p" stands for any percentile)
    default_on: bool = False  # judged even when the configuration does not name it
    no_data: str | None = None  # what no data means when the configuration does not say; else by severity
    statistics: str = ""  # how sure it is, in words
    needs: str = "a result"

    @property
    def page(self) -> str:
        return f"docs/rules/{self.id}.md"


_rules: dict[str, Rule] = {}


def register(
    id: str, name: str, severity: Severity, *, summary: str, why: str, fix: str, example: str, **more: Any
) -> Callable[[Evaluate], Evaluate]:
    """Decorator that adds a rule to the registry. Ids are for ever: retire one, never reuse it."""

    def add(evaluate: Evaluate) -> Evaluate:
        if id in _rules or any(rule.name == name for rule in _rules.values()):
            raise ValueError(f"rule {id} / {name} is registered twice")
        _rules[id] = Rule(id, name, severity, summary, why, fix, example, evaluate, **more)
        return evaluate

    return add


def all_rules() -> dict[str, Rule]:
    """Every rule by id, in the order of their ids."""
    from sits.validate.rules import (  # noqa: F401
        answers,
        bounds,
        clauses,
        hygiene,
        protocol,
        quality,
        regression,
        resources,
    )

    return dict(sorted(_rules.items()))


def find_rule(word: str) -> Rule | None:
    """A rule by id (any case) or by name."""
    for rule in all_rules().values():
        if word.upper() == rule.id or word.lower().replace("_", "-") == rule.name:
            return rule
    return None


def iter_names() -> Iterator[str]:
    for rule in all_rules().values():
        yield rule.id
        yield rule.name
