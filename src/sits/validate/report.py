"""What a validation hands to the writers: the verdict with its findings, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sits.errors import SitsError
from sits.validate.context import Context
from sits.validate.rules.model import Finding
from sits.validate.source import ConfigError, Mark, Problem
from sits.validate.verdict import TITLES, ExitCode, Verdict

DEFAULT_CONFIG = ".sits/config.yaml"


@dataclass(slots=True)
class Report:
    """One validation. Without a verdict, ``problems`` say what stood in the way."""

    config: str = DEFAULT_CONFIG
    profile: str | None = None
    verdict: Verdict | None = None
    problems: list[Problem] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    baselines: list[str] = field(default_factory=list)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def code(self) -> ExitCode:
        return self.verdict.code if self.verdict else ExitCode.UNJUDGED

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code if self.verdict else int(ExitCode.UNJUDGED)

    @property
    def title(self) -> str:
        return TITLES[self.code]

    @property
    def reason(self) -> str:
        if self.verdict:
            return self.verdict.reason
        return "the validation could not run" if self.problems else "nothing was validated"

    @property
    def findings(self) -> Sequence[Finding]:
        return self.verdict.findings if self.verdict else ()


def problems_of(error: SitsError, config: str) -> list[Problem]:
    """The problems an error stands for, each with a place in a file."""
    if isinstance(error, ConfigError):
        return error.problems
    return [Problem(error.message, Mark(config), error.hint)]


def report_of(context: Context, verdict: Verdict) -> Report:
    """The report of a validation that ran."""
    return Report(
        config=relative(context.config.path),
        profile=context.config.profile,
        verdict=verdict,
        results=[loaded.shown for loaded in context.results],
        baselines=[loaded.shown for loaded in context.baselines],
    )


def relative(path: str | Path) -> str:
    """A path as CI systems want it: relative to the working directory where it lies inside it, with slashes."""
    given = Path(path)
    try:
        return given.resolve().relative_to(Path.cwd().resolve()).as_posix()
    except (ValueError, OSError):
        return given.as_posix()
