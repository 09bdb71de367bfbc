"""When may a run be called settled? SPEC section 2, protocol: three consecutive rounds that hardly move.

For numerics (mean token loss on a fixed text) both bounds are the article's. Timing cannot settle to 0.12%, so
its variant takes one relative tolerance, and says which.
"""

from __future__ import annotations

from collections.abc import Sequence

from sits.spec.result import Convergence

ROUNDS = 3
LOSS_ABSOLUTE = 0.0015
LOSS_RELATIVE = 0.0012
TIMING_RELATIVE = 0.05


def settled(values: Sequence[float], *, absolute: float | None, relative: float | None, rounds: int = ROUNDS) -> bool:
    """Do the last ``rounds`` values differ pairwise by < ``absolute`` and <= ``relative`` of the smallest one?

    Pairwise, not only step by step: a slow drift must not pass as settled.
    """
    if len(values) < rounds:
        return False
    last = values[-rounds:]
    spread, base = max(last) - min(last), min(abs(value) for value in last)
    if absolute is not None and not spread < absolute:
        return False
    return relative is None or spread <= relative * base


def loss_convergence(values: Sequence[float]) -> Convergence:
    """Convergence of the mean token loss on a fixed text: < 0.0015 absolute and <= 0.12% relative."""
    return _judge("loss", values, LOSS_ABSOLUTE, LOSS_RELATIVE)


def timing_convergence(
    metric: str, values: Sequence[float], relative: float = TIMING_RELATIVE, rounds: int = ROUNDS
) -> Convergence:
    """Convergence of a performance figure: the last ``rounds`` rounds within ``relative`` of each other."""
    return _judge(metric, values, None, relative, rounds)


def _judge(
    metric: str, values: Sequence[float], absolute: float | None, relative: float, rounds: int = ROUNDS
) -> Convergence:
    done = settled(values, absolute=absolute, relative=relative, rounds=rounds)
    if len(values) < rounds:
        detail = f"{len(values)} of the {rounds} rounds needed"
    else:
        last = list(values[-rounds:])
        base = min(abs(value) for value in last)
        moved = (max(last) - min(last)) / base if base else float("inf")
        detail = f"the last {rounds} rounds differ by {moved:.2%}, allowed {relative:.2%}"
    return Convergence(
        metric=metric,
        status="converged" if done else ("not_converged" if len(values) >= rounds else "not_checked"),
        tolerance_relative=relative,
        tolerance_absolute=absolute,
        rounds=list(values),
        detail=detail,
    )
