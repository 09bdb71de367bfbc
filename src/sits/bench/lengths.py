"""Token lengths of a workload: ``128``, ``64..256`` (uniform), ``normal:128:32``, ``lognormal:128:0.5``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sits.errors import InputError

LONGEST = 10_000_000
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")
_SPREAD = re.compile(r"^(normal|lognormal):([0-9.]+):([0-9.]+)$")


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole token counts >= 1. ``a`` and ``b``: bounds, or centre and spread."""

    kind: str  # fixed | uniform | normal | lognormal
    a: float
    b: float = 0.0

    @classmethod
    def parse(cls, text: str, what: str = "length") -> Lengths:
        """Raises ``InputError`` on anything that is not a distribution of positive lengths."""
        hint = "Write 128, 64..256, normal:128:32 or lognormal:128:0.5"
        text = text.strip().lower()
        if re.fullmatch(r"[+-]?\d+", text):
            value = int(text)
            if not 1 <= value <= LONGEST:
                raise InputError(f"{what} must be at least 1 token, not {text}", hint)
            return cls("fixed", value)
        if match := _RANGE.match(text):
            low, high = int(match[1]), int(match[2])
            if not 1 <= low <= high <= LONGEST:
                raise InputError(f"{what} range {text} must rise and start at 1 or more", hint)
            return cls("uniform", low, high)
        if match := _SPREAD.match(text):
            try:
                centre, spread = float(match[2]), float(match[3])
            except ValueError:
                raise InputError(f"cannot read {what} {text!r}", hint) from None
            if not 1 <= centre <= LONGEST or spread <= 0:
                raise InputError(f"{what} {text}: centre must be at least 1 and spread above 0", hint)
            return cls(match[1], centre, spread)
        raise InputError(f"cannot read {what} {text!r}", hint)

    @property
    def mean(self) -> float:
        """Mean before rounding and clipping."""
        if self.kind == "uniform":
            return (self.a + self.b) / 2
        return self.a * math.exp(self.b**2 / 2) if self.kind == "lognormal" else self.a

    @property
    def largest(self) -> int | None:
        """Upper bound, ``None`` where the distribution has none."""
        return {"fixed": int(self.a), "uniform": int(self.b)}.get(self.kind)

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """``count`` lengths, ``[count]`` int64."""
        if self.kind == "fixed":
            return np.full(count, int(self.a), dtype=np.int64)
        if self.kind == "uniform":
            return rng.integers(int(self.a), int(self.b) + 1, count)
        if self.kind == "normal":
            values = rng.normal(self.a, self.b, count)
        else:
            values = self.a * np.exp(rng.normal(0.0, self.b, count))
        return np.clip(np.rint(values), 1, LONGEST).astype(np.int64)

    def __str__(self) -> str:
        if self.kind == "fixed":
            return f"{self.a:g}"
        return f"{self.a:g}..{self.b:g}" if self.kind == "uniform" else f"{self.kind}:{self.a:g}:{self.b:g}"
