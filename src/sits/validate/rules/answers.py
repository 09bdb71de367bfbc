"""What the records of single requests say: they agree with the figures, and answers are as long as they should be."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sits.errors import InputError
from sits.spec.intervals import Pool, Run
from sits.spec.result import LoadPoint
from sits.validate import quantity
from sits.validate.context import Context, columns_or_reason, figure_of
from sits.validate.rules.bounds import failures
from sits.validate.rules.estimates import no_points, over_points
from sits.validate.rules.model import Finding, Outcome, Settings, Severity, register


@register(
    "SITS-C036",
    "records-match",
    Severity.CRITICAL,
    summary="The figures of the result agree with the per-request records beside it.",
    why="result.json is a small text file that anything may rewrite, and a mixed-up folder pairs one run's "
    "figures with "
    "another's records. The gate recomputes counts and medians and does not take the summary's word.",
    fix="Copy the whole folder of a run, never single files. If nobody touched them, report it: it is a fault of "
    "SITS.",
    example="records-match: true",
    default_on=True,
    no_data="skip",
    needs="a result with its records",
)
def records_match(context: Context, settings: Settings) -> Iterable[Finding]:
    for loaded in context.results:
        try:
            columns = loaded.columns
        except InputError as error:
            # Records that are named but cannot be read are no reason to skip.
            yield Finding(Outcome.FAIL, str(error), scope=context.scope(loaded), metric="records")
            continue
        if columns is None:
            text = "the run kept no per-request records"
            yield Finding(Outcome.NO_DATA, text, scope=context.scope(loaded), metric="records")
            continue
        for point in loaded.result.points:
            scope = context.scope(loaded, point)
            wrong = _differences(point, columns.get(point.index))
            if wrong:
                yield Finding(Outcome.FAIL, "; ".join(wrong), scope=scope, metric="records")
            else:
                yield Finding(Outcome.PASS, "the figures agree with the records", scope=scope, metric="records")


def _differences(point: LoadPoint, columns: object) -> list[str]:
    from sits.spec.columns import PointColumns

    counted = failures(point)
    if not isinstance(columns, PointColumns):
        return [] if counted is None else [f"the result counts {counted[1]} requests, the records hold none"]
    wrong = []
    if counted is not None and counted != (columns.failed, columns.sent):
        wrong.append(
            f"the result counts {counted[0]} failures in {counted[1]} requests, the records {columns.failed} in "
            f"{columns.sent}"
        )
    for series in ("ttft", "itl", "e2e"):
        samples = columns.series(series)
        pool = Pool([Run(samples)])
        for q in (50, 99):
            figure, _ = figure_of(point, f"{series}.p{q}")
            if figure is None or figure.value is None:
                continue
            if len(samples) == 0:
                wrong.append(f"{series}.p{q} is {figure.value:.4g} ms in the result, the records have no sample")
                continue
            real = pool.quantile(q / 100.0)
            if not np.isclose(real, figure.value, rtol=0.005, atol=0.01):
                wrong.append(f"{series}.p{q} is {figure.value:.4g} ms in the result and {real:.4g} ms in the records")
    return wrong


@register(
    "SITS-C037",
    "output-length",
    Severity.CRITICAL,
    summary="Answers are as long as they should be.",
    why="An engine that stops early is faster. MLPerf asks for 90% to 110% of the reference length; so does this "
        "rule, "
    "against the length that was asked for (or the baseline's, with `against: baseline`).",
    fix="Check stop tokens, max_tokens and the chat template; run with ignore_eos for pure speed tests.",
    example="output-length: {min: 90%, max: 110%}",
    parameters={
        "min": {**quantity.schema("share", "Least mean length over the reference"), "maximum": 10},
        "max": {"description": "Largest mean length over the reference, as 1.1 or 110%", "type": ["number", "string"],
                "minimum": 0, "maximum": 10, "pattern": r"^[0-9]+(\.[0-9]+)? ?%$"},
        "against": {"description": "requested (default) or baseline", "type": "string",
                    "enum": ["requested", "baseline"]},
    },
    bound=("min", "max"),
    needs="a result with its records",
)  # fmt: skip
def output_length(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    low, high = quantity.parse("share", settings.get("min", 0.0)), quantity.parse("share", settings.get("max", 10.0))
    against = settings.get("against", "requested")
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        columns, reason = columns_or_reason(loaded, point)
        if columns is None:
            yield Finding(Outcome.NO_DATA, reason, metric="output_length", scope=scope)
            continue
        if against == "requested":
            known = (columns.requested_tokens > 0) & (columns.output_tokens > 0)
            reference = float(columns.requested_tokens[known].mean()) if known.any() else 0.0
            mean = float(columns.output_tokens[known].mean()) if known.any() else 0.0
            nothing = "the records do not say how many tokens were asked for"
        else:
            mine = columns.output_tokens[columns.output_tokens > 0]
            mean = float(mine.mean()) if len(mine) else 0.0
            reference = _baseline_length(context, point)
            nothing = "no baseline has this load point with records"
        if reference <= 0:
            yield Finding(Outcome.NO_DATA, nothing, metric="output_length", scope=scope)
            continue
        ratio = mean / reference
        outcome = Outcome.PASS if low <= ratio <= high else Outcome.FAIL
        text = (
            f"answers have {mean:.1f} tokens on average, {ratio:.1%} of the {reference:.1f} {against}, required "
            f"{low:.0%} to {high:.0%}"
        )
        bound = low if ratio < 1 else high
        yield Finding(outcome, text, metric="output_length", measured=ratio, bound=bound, unit="share", scope=scope)


def _baseline_length(context: Context, point: LoadPoint) -> float:
    from sits.report.pairing import matching_point

    lengths = []
    for loaded in context.baselines:
        other = matching_point(point, loaded.result)
        columns = columns_or_reason(loaded, other)[0] if other else None
        if columns is not None and (columns.output_tokens > 0).any():
            lengths.append(float(columns.output_tokens[columns.output_tokens > 0].mean()))
    return float(np.mean(lengths)) if lengths else 0.0
