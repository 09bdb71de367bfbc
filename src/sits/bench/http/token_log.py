"""What one streamed answer delivered, and how its tokens spread over the chunks.

A chunk is what one read from the socket delivered: events that arrive together have one time, so they are one
chunk of several tokens, not gaps of zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counts:
    """Token counts as the server states them."""

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None


@dataclass(slots=True)
class TokenLog:
    """Filled while a stream is read; :meth:`settle` turns it into the fields of a record.

    Times are absolute monotonic ns. With several choices the times are those of choice 0 and all are counted.
    """

    times: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)  # token-bearing events in each chunk
    sizes: list[int] = field(default_factory=list)  # characters in each chunk
    exact: list[int] = field(default_factory=list)  # tokens in each chunk, from running usage
    blanks: list[int] = field(default_factory=list)  # events after the first token that carried an empty text
    other_events: int = 0  # token-bearing events of choices beyond the first
    choices: int = 1
    first_visible: int | None = None
    counts: Counts = field(default_factory=Counts)
    running: int = 0  # completion tokens so far, from servers that send usage in every chunk
    finish_reason: str | None = None
    finished: int = 0  # choices that have ended
    done: bool = False  # [DONE] or its counterpart
    error: str | None = None
    text: list[str] | None = None

    def token(self, now: int, size: int, visible: bool, choice: int = 0) -> None:
        """An event that carries text, reasoning or a tool call of ``size`` characters."""
        if visible and self.first_visible is None:
            self.first_visible = now
        if choice:
            self.other_events += 1
            return
        times = self.times
        if times and times[-1] == now:
            self.events[-1] += 1
            self.sizes[-1] += size
        else:
            times.append(now)
            self.events.append(1)
            self.sizes.append(size)

    def blank(self, now: int) -> None:
        """An event with an empty text: a token the detokeniser holds back, the end-of-sequence token, or nothing."""
        if self.times:
            self.blanks.append(now)

    def running_usage(self, completion_tokens: int) -> None:
        """Usage sent along with the chunk just logged."""
        new = completion_tokens - self.running
        self.running = completion_tokens
        while len(self.exact) < len(self.times):
            self.exact.append(0)
        if self.exact:
            self.exact[-1] += new

    @property
    def tokens_seen(self) -> int:
        """Token-bearing events of all choices."""
        return sum(self.events) + self.other_events

    @property
    def ended(self) -> bool:
        """A terminal mark arrived."""
        return self.done or self.finish_reason is not None

    def settle(self) -> tuple[list[int], list[int] | None, int, str]:
        """``(times, tokens of each chunk or None for one each, output tokens, source of the count)``."""
        total = self.counts.output
        if total is None:
            total = self.running or None
        if not self.times:
            return [], None, total or 0, "usage" if total is not None else "chunks"
        if total is None or total <= 0:
            return self.times, _none_if_ones(self.events), self.tokens_seen, "chunks"
        mine = total if self.choices == 1 else max(1, round(total / self.choices))
        if len(self.exact) == len(self.times) and sum(self.exact) == mine and min(self.exact) > 0:
            return self.times, _none_if_ones(self.exact), total, "usage"
        seen = sum(self.events)
        if seen == mine:
            return self.times, _none_if_ones(self.events), total, "usage"
        if self.blanks and seen + len(self.blanks) == mine:
            self._admit_blanks()
            return self.times, _none_if_ones(self.events), total, "usage"
        times, tokens = _spread(self.times, self.sizes, mine)
        return times, _none_if_ones(tokens), total, "usage"

    def _admit_blanks(self) -> None:
        """The empty events were tokens too."""
        merged = dict(zip(self.times, self.events))
        for at in self.blanks:
            merged[at] = merged.get(at, 0) + 1
        self.times = sorted(merged)
        self.events = [merged[at] for at in self.times]


def _none_if_ones(tokens: list[int]) -> list[int] | None:
    return None if all(count == 1 for count in tokens) else tokens


def _spread(times: list[int], sizes: list[int], total: int) -> tuple[list[int], list[int]]:
    """Share ``total`` tokens out over chunks by their text length, at least one each while they last."""
    chunks = len(times)
    if total <= chunks:
        # Fewer tokens than chunks: a chunk without a token of its own is dropped.
        tokens = [1] + [
            k * (total - 1) // (chunks - 1) - (k - 1) * (total - 1) // (chunks - 1) for k in range(1, chunks)
        ]
        return [t for t, n in zip(times, tokens) if n], [n for n in tokens if n]
    extra, weight = total - chunks, sum(sizes) or chunks
    tokens, before, passed = [], 0, 0
    for size in sizes if sum(sizes) else [1] * chunks:
        passed += size
        upto = round(extra * passed / weight)
        tokens.append(1 + upto - before)
        before = upto
    return times, tokens


def message_of(error: Any) -> str:
    """The readable part of an error object, at most 300 characters."""
    if isinstance(error, dict):
        for key in ("message", "detail", "error", "msg"):
            if error.get(key):
                return message_of(error[key])
    if isinstance(error, list) and error:
        return message_of(error[0])
    text = error if isinstance(error, str) else repr(error)
    return " ".join(text.split())[:300]
