"""A small chart kit: scales, ticks and an SVG canvas with axes. Colours come from the page's style sheet.

Charts are drawn here and not in the browser, so that a report shows its plots where scripts are blocked (mail, CI
artifact viewers), prints sharply, and opens at once whatever the size of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps data to pixels, linear or logarithmic, or through ``warp`` (then ``ticks`` must be given)."""

    low: float
    high: float
    pixel_low: float
    pixel_high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, 1e-12))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.pixel_low + share * (self.pixel_high - self.pixel_low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values inside the scale."""
        return log_ticks(self.low, self.high, about) if self.log else linear_ticks(self.low, self.high, about)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten inside [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """1-2-5 values, or powers of ten where those would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    if len(fine) <= about + 2 or len(fine) < 3:
        return fine
    coarse = [10.0**p for p in powers if low <= 10.0**p <= high]
    return coarse if len(coarse) >= 3 else fine[:: math.ceil(len(fine) / about)]


@dataclass(slots=True)
class Chart:
    """An SVG under construction. Sizes in pixels of its own view box; the page scales it."""

    width: int
    height: int
    label: str  # what a screen reader says
    left: int = 56
    right: int = 14
    top: int = 14
    bottom: int = 40
    parts: list[str] = field(default_factory=list)

    @property
    def plot_right(self) -> int:
        return self.width - self.right

    @property
    def plot_bottom(self) -> int:
        return self.height - self.bottom

    def x_scale(self, low: float, high: float, log: bool = False) -> Scale:
        return Scale(low, high, self.left, self.plot_right, log)

    def y_scale(self, low: float, high: float, log: bool = False) -> Scale:
        return Scale(low, high, self.plot_bottom, self.top, log)

    def add(self, markup: str) -> None:
        self.parts.append(markup)

    def y_axis(self, scale: Scale, show: Format, title: str = "", about: int = 5) -> None:
        """Horizontal grid lines with labels on the left."""
        for value in scale.ticks(about):
            y = scale(value)
            self.add(f'<line class="grid" x1="{self.left}" x2="{self.plot_right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.text(self.left - 7, y + 4, show(value), "end")
        if title:
            self.text(self.left, self.top - 6, title, "start", "axis")

    def x_axis(self, scale: Callable[[float], float], ticks: Sequence[float], show: Format, title: str = "") -> None:
        """A base line with tick labels under it; labels that would overlap are left out."""
        y = self.plot_bottom
        self.add(f'<line class="base" x1="{self.left}" x2="{self.plot_right}" y1="{y}" y2="{y}"/>')
        last = -1e9
        for value in ticks:
            x, text = scale(value), show(value)
            half = 3.4 * len(text)
            self.add(f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>')
            if x - half > last + 6:
                self.text(min(x, self.width - half - 1), y + 17, text, "middle")
                last = x + half
        if title:
            self.text((self.left + self.plot_right) / 2, self.height - 5, title, "middle", "axis")

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> None:
        self.add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """A polyline through pixel positions."""
        if points:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self.add(f'<path class="{kind}" d="{path}"/>')

    def area(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """The area between pixel positions and the base line."""
        if points:
            base = self.plot_bottom
            path = f"M{points[0][0]:.1f} {base}L" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self.add(f'<path class="{kind}" d="{path}L{points[-1][0]:.1f} {base}Z"/>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> None:
        data = f' data-t="{escape(tip, quote=True)}"' if tip else ""
        self.add(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{data}/>')

    def dot(self, x: float, y: float, radius: float, kind: str, tip: str = "") -> None:
        data = f' data-t="{escape(tip, quote=True)}" tabindex="0"' if tip else ""
        self.add(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{data}/>')

    def render(self, kind: str) -> str:
        """The finished element; ``kind`` is ``wide`` or ``narrow``: the page shows the one that fits."""
        label = escape(self.label, quote=True)
        body = "".join(self.parts)
        box = f"0 0 {self.width} {self.height}"
        return f'<svg class="{kind}" viewBox="{box}" role="img" aria-label="{label}">{body}</svg>'


FULL_WIDTH, HALF_WIDTH, PHONE_WIDTH = 980, 480, 350


def both_sizes(draw: Callable[[int, int], Chart], height: int = 300, wide: int = FULL_WIDTH) -> str:
    """A chart drawn twice, for wide screens and for phones, so that its text is readable on both."""
    return draw(wide, height).render("wide") + draw(PHONE_WIDTH, height).render("narrow")


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """``(class of the swatch, label)`` pairs as a list."""
    items = "".join(f'<li><i class="{kind}"></i>{escape(label)}</li>' for kind, label in entries)
    return f'<ul class="legend">{items}</ul>'
