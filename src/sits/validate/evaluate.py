"""Runs the rules. One that breaks is a finding of its own ("could not judge"), never a crash and never a pass."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from sits.errors import InputError
from sits.report.loaded import LoadedResult
from sits.validate.config import Config, expand_paths
from sits.validate.context import Context
from sits.validate.rules.model import Finding, Outcome, Settings
from sits.validate.verdict import FailOn, Verdict, decide, treat, waive

# Rules on waivers come last: they look at which waivers were used.
_LAST = ("waivers", "unused-waiver")


def load_context(
    config: Config, results: list[Path] | None = None, baselines: list[Path] | None = None, today: date | None = None
) -> Context:
    """Read the results and baselines: those given, else those the configuration names.

    Raises ``InputError`` when a result cannot be read or none is named. A baseline that cannot be read is an error
    too: a gate that silently compares with nothing is open.
    """
    files = results or expand_paths(config.results, config.base)
    if not files:
        hint = "Give --result FILE, or 'result:' in the configuration, or --run"
        raise InputError("there is no result to judge", hint)
    references = baselines or expand_paths(config.baselines, config.base)
    return Context(
        config,
        [LoadedResult(path, _shown(path)) for path in files],
        [LoadedResult(path, _shown(path)) for path in references],
        today or date.today(),
    )


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except (ValueError, OSError):
        return str(path)


def evaluate(context: Context, fail_on: FailOn = "critical") -> Verdict:
    """Judge every rule of the configuration."""
    findings: list[Finding] = []
    ordered = sorted(context.config.settings, key=lambda settings: settings.rule.name in _LAST)
    for settings in ordered:
        findings += run_rule(context, settings)
    return decide(findings, fail_on)


def run_rule(context: Context, settings: Settings) -> list[Finding]:
    """The findings of one use of a rule, complete with what each counts as."""
    try:
        found = list(settings.rule.evaluate(context, settings))
    except InputError as error:
        found = [Finding(Outcome.NO_DATA, str(error))]
    except MemoryError:
        raise
    except Exception as error:  # a rule must not take the gate down, nor open it
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where else "unknown"
        text = f"the rule broke: {type(error).__name__}: {error} (at {place})"
        hint = "This is a fault of sits-validate or a damaged result; please report it with the result file"
        found = [Finding(Outcome.ERROR, text, hint=hint)]
    if not found:
        found = [Finding(Outcome.NO_DATA, "the rule found nothing to look at")]
    rule = settings.rule
    complete = []
    for finding in found:
        finding = finding.with_(
            rule_id=rule.id, rule_name=rule.name, severity=settings.severity, mark=finding.mark or settings.mark
        )
        complete.append(waive(context, finding.with_(treated_as=treat(finding, settings))))
    return complete
