"""Quality: a faster model that answers worse is not faster. And the precision plan still fits the traffic.

Figures come from ``extra.quality`` of a result: ``perplexity``, ``kl`` (mean KL divergence to the reference model),
``answers: {correct, total}``; and from ``extra.precision_plan``: ``layers: {name: {planned, live}}``, or ``planned``
and ``live`` of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from sits.spec.special import proportion_bounds
from sits.spec.statistics import wilson_interval
from sits.validate import quantity
from sits.validate.context import Context
from sits.validate.rules.estimates import CONFIDENCE, Estimate, compare
from sits.validate.rules.model import Finding, Outcome, Settings, Severity, register
from sits.validate.rules.resources import gauge


def _quality(extra: dict[str, Any]) -> dict[str, Any]:
    value = extra.get("quality")
    return value if isinstance(value, dict) else {}


def _answers(quality: dict[str, Any]) -> tuple[int, int] | None:
    answers = quality.get("answers")
    if not isinstance(answers, dict):
        return None
    correct, total = answers.get("correct"), answers.get("total")
    if type(correct) is not int or type(total) is not int or not 0 <= correct <= total or total == 0:
        return None
    return correct, total


@register(
    "SITS-C040",
    "quality",
    Severity.CRITICAL,
    summary="Perplexity, KL divergence and answer checks are not worse than allowed.",
    why="Quantisation, pruning and cache compression buy speed with quality. The price must be in the same gate "
    "as the gain.",
    fix="Raise the precision of the most sensitive layers (`sits quantize --plan`), or accept the loss openly "
    "with a waiver.",
    example="quality: {max_perplexity_increase: 1%, max_kl: 0.05, max_answer_drop: 2%}",
    parameters={
        "max_perplexity": quantity.schema("rate", "Largest perplexity"),
        "max_perplexity_increase": quantity.schema("share", "Largest relative increase over the baseline"),
        "max_kl": quantity.schema("rate", "Largest mean KL divergence to the reference model, in nats"),
        "min_answers": quantity.schema("share", "Least share of correct answers"),
        "max_answer_drop": quantity.schema("share", "Largest drop of that share against the baseline"),
        "confidence": CONFIDENCE,
    },
    bound=("max_perplexity", "max_perplexity_increase", "max_kl", "min_answers", "max_answer_drop"),
    statistics="Answers: exact binomial bounds, and Newcombe's interval for the drop. Perplexity and KL: single "
    "figures.",
    needs="a result with extra.quality",
)
def quality(context: Context, settings: Settings) -> Iterable[Finding]:
    bases = [_quality(loaded.result.extra) for loaded in context.baselines]
    for loaded in context.results:
        mine, scope, evidence = _quality(loaded.result.extra), context.scope(loaded), str(loaded.file)
        for name, raw in settings.parameters.items():
            if name == "confidence":
                continue
            if name in ("min_answers", "max_answer_drop"):
                limit = quantity.parse("share", raw)
                yield _judge_answers(context, settings, mine, bases, name, limit).with_(
                    scope=scope, evidence=evidence
                )
                continue
            key = "kl" if name == "max_kl" else "perplexity"
            value = gauge(mine, key)
            if value is None or value < 0:
                yield Finding(Outcome.NO_DATA, f"the result has no extra.quality.{key}", metric=key, scope=scope)
                continue
            kind = "share" if name == "max_perplexity_increase" else "rate"
            limit, label, unit = quantity.parse(kind, raw), {"kl": "KL divergence"}.get(key, key), ""
            if name == "max_perplexity_increase":
                known = [base for base in (gauge(b, "perplexity") for b in bases) if base is not None and base > 0]
                if not known:
                    text = "no baseline has extra.quality.perplexity"
                    yield Finding(Outcome.NO_DATA, text, metric=key, scope=scope)
                    continue
                base = sum(known) / len(known)
                label, unit = f"perplexity {base:.4g} -> {value:.4g}: increase", "share"
                value = value / base - 1
                if value < 0:
                    text = f"perplexity fell from {base:.4g} by {-value:.2%}"
                    yield Finding(Outcome.PASS, text, metric=key, measured=value, bound=limit, unit=unit, scope=scope)
                    continue
            found = Estimate(value, value, value, 1, None, evidence)
            yield compare(
                found, limit, at_most=True, unit=unit, metric=key, label=label, decide="bound", strict=False
            ).with_(scope=scope)


def _judge_answers(
    context: Context, settings: Settings, mine: dict[str, Any], bases: list[dict[str, Any]], name: str, limit: float
) -> Finding:
    answers = _answers(mine)
    if answers is None:
        return Finding(Outcome.NO_DATA, "the result has no extra.quality.answers", metric="answers")
    correct, total = answers
    confidence = settings.get("confidence", context.config.confidence)
    enough = f"Check more answers (now {total})"
    if name == "min_answers":
        low, high = proportion_bounds(correct, total, confidence)
        found = Estimate(correct / total, low, high, total, confidence, "", enough)
        return compare(
            found, limit, at_most=False, unit="share", metric="answers", label=f"{correct} of {total} answers are "
                f"right:",
            decide="bound", strict=False,
        )  # fmt: skip
    known = [pair for pair in map(_answers, bases) if pair is not None]
    if not known:
        return Finding(Outcome.NO_DATA, "no baseline has extra.quality.answers", metric="answers")
    base = (sum(pair[0] for pair in known), sum(pair[1] for pair in known))
    share, old = correct / total, base[0] / base[1]
    two_sided = 2 * confidence - 1
    mine_low, mine_high = wilson_interval(correct, total, two_sided) or (0.0, 1.0)
    old_low, old_high = wilson_interval(*base, two_sided) or (0.0, 1.0)
    drop = old - share
    low, high = (
        drop - math.hypot(old - old_low, mine_high - share),
        drop + math.hypot(old_high - old, share - mine_low),
    )
    outcome = Outcome.PASS if high <= limit else Outcome.FAIL if low > limit else Outcome.INCONCLUSIVE
    text = (
        f"right answers {old:.1%} -> {share:.1%}, a drop of {drop * 100:.2f} points "
        f"({low * 100:+.2f} to {high * 100:+.2f} with {confidence:.0%} confidence a side), "
        f"required <= {limit * 100:g} points"
    )
    return Finding(
        outcome, text, metric="answers", measured=drop, bound=limit, unit="share", low=low, high=high, n=total,
        confidence=confidence, margin=(limit - drop) / limit if limit else None,
        hint=enough if outcome is Outcome.INCONCLUSIVE else None,
    )  # fmt: skip


@register(
    "SITS-W040",
    "precision-drift",
    Severity.WARN,
    summary="The compute density ratio (DCR) on live traffic is still what the precision plan was made for.",
    why="A plan that keeps some layers at high precision was made for one kind of traffic. When the traffic "
    "changes, so may "
    "the layers that are sensitive.",
    fix="Calibrate again on a sample of today's traffic and compare the two plans.",
    example="precision-drift: {max: 0.1}",
    parameters={"max": quantity.schema("rate", "Largest |live - planned| DCR of a layer; default 0.1")},
    needs="a result with extra.precision_plan",
)
def precision_drift(context: Context, settings: Settings) -> Iterable[Finding]:
    limit = float(settings.get("max", 0.1))
    for loaded in context.results:
        scope, plan = context.scope(loaded), loaded.result.extra.get("precision_plan")
        drifts = _drifts(plan) if isinstance(plan, dict) else {}
        if not drifts:
            text = "the result does not say how far DCR drifted from the plan"
            yield Finding(Outcome.NO_DATA, text, metric="dcr_drift", scope=scope)
            continue
        layer = max(drifts, key=lambda name: drifts[name])
        value = drifts[layer]
        over = sum(1 for drift in drifts.values() if drift > limit)
        outcome = Outcome.PASS if value <= limit else Outcome.FAIL
        text = f"largest DCR drift {value:.3f} at {layer} ({over} of {len(drifts)} layers over {limit:g})"
        yield Finding(
            outcome, text, metric="dcr_drift", measured=value, bound=limit, n=len(drifts), scope=scope,
            margin=(limit - value) / limit if limit else None,
        )  # fmt: skip


def _drifts(plan: dict[str, Any]) -> dict[str, float]:
    layers = plan.get("layers", {"the model": plan})
    found: dict[str, float] = {}
    for name, entry in layers.items() if isinstance(layers, dict) else ():
        if isinstance(entry, dict):
            drift, planned, live = gauge(entry, "drift"), gauge(entry, "planned"), gauge(entry, "live")
            if drift is None and planned is not None and live is not None:
                drift = live - planned
            if drift is not None:
                found[str(name)] = abs(drift)
    return found
