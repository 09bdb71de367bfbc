"""Multi-turn conversations: each turn carries the whole history, after a pause in which the user thinks.

A caller (or an arrival) is a conversation. Turn k + 1 is sent ``think`` seconds after the answer of turn k ended,
and holds the real answer, so that the server's prefix cache can do what it does in production.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sits.bench.client import RequestSpec
from sits.bench.composed import PartMaker
from sits.bench.lengths import Lengths
from sits.spec.records import RequestRecord

_PHASE_SALT = {"measure": 0, "warmup": 1, "cooldown": 2}


@dataclass(frozen=True, slots=True)
class ConversationShape:
    """Distributions of a conversation. ``think_ms`` is in milliseconds; ``system`` tokens open every one alike."""

    turns: Lengths
    user_len: Lengths
    output_len: Lengths
    think_ms: Lengths | None = None
    system: int = 0


class ConversationWorkload:
    """Conversation ``index`` is the same in every run with the same seed, up to the target's own answers."""

    def __init__(
        self, shape: ConversationShape, maker: PartMaker, max_context: int | None = None, keep_text: bool = False
    ):
        self.shape, self.maker, self.max_context = shape, maker, max_context
        self.keep_text = keep_text
        self._open: dict[str, _History] = {}
        self.cut = 0  # conversations that ended early because the context was full

    def request(self, index: int, phase: str = "measure") -> RequestSpec:
        """The first turn."""
        rng = self._rng(index, phase)
        turns = int(self.shape.turns.draw(rng, 1)[0])
        spec = RequestSpec(f"{phase}-{index}", int(self.shape.output_len.draw(rng, 1)[0]), seed=self.maker.seed)
        spec.session = f"{phase}-{index}"
        user = int(self.shape.user_len.draw(rng, 1)[0])
        spec.extra = {}
        history = _History(index, phase, turns, rng)
        if self.maker.uses_ids:
            spec.prompt_ids = (self._ids(self.shape.system, -1) if self.shape.system else []) + self._ids(
                user, self._salt(index, phase, 0)
            )
            spec.prompt_tokens = len(spec.prompt_ids)
        else:
            spec.messages = []
            if self.shape.system:
                spec.messages.append({"role": "system", "content": self.maker.words(self.shape.system, 0x5E5)})
            text = self.maker.words(max(1, user - self.maker.overhead), self._salt(index, phase, 0))
            spec.messages.append({"role": "user", "content": text})
            spec.prompt_tokens = self.shape.system + user
        self._open[spec.session] = history
        return spec

    def follow_up(self, request: RequestSpec, record: RequestRecord) -> tuple[float, RequestSpec] | None:
        """Think time in seconds and the next turn; None after the last one, after a failure, or when the context
        is full."""
        key = request.session or ""
        history = self._open.get(key)
        text, record.text = record.text, record.text if self.keep_text else None
        if history is None or not record.ok or request.turn + 1 >= history.turns:
            self._open.pop(key, None)
            return None
        rng, turn = history.rng, request.turn + 1
        user = int(self.shape.user_len.draw(rng, 1)[0])
        output = int(self.shape.output_len.draw(rng, 1)[0])
        pause = float(self.shape.think_ms.draw(rng, 1)[0]) / 1e3 if self.shape.think_ms is not None else 0.0
        length = (record.prompt_tokens or request.prompt_tokens or 0) + record.output_tokens + user
        if self.max_context is not None and length + output > self.max_context:
            self.cut += 1
            self._open.pop(key, None)
            return None
        spec = RequestSpec(f"{key}.{turn}", output, seed=request.seed, session=key, turn=turn, prompt_tokens=length)
        salt = self._salt(history.index, history.phase, turn)
        if self.maker.uses_ids:
            # An embedded engine returns counts, not ids: the answer's place is taken by ids of the same number.
            answer = self._ids(record.output_tokens, salt ^ 0x5A5A)
            spec.prompt_ids = [*(request.prompt_ids or []), *answer, *self._ids(user, salt)]
        else:
            answer_text = text or self.maker.words(max(1, record.output_tokens), salt ^ 0x5A5A)
            spec.messages = [
                *(request.messages or []),
                {"role": "assistant", "content": answer_text},
                {"role": "user", "content": self.maker.words(user, salt)},
            ]
        return pause, spec

    def describe(self) -> dict[str, Any]:
        """For the result."""
        shape = self.shape
        return {
            "kind": "conversation",
            "turns": str(shape.turns),
            "user_len": str(shape.user_len),
            "output_len": str(shape.output_len),
            "think_ms": str(shape.think_ms) if shape.think_ms is not None else "0",
            "system_tokens": shape.system,
            "cut_by_context": self.cut,
        }

    def _rng(self, index: int, phase: str) -> np.random.Generator:
        return np.random.default_rng([self.maker.seed, index, _PHASE_SALT.get(phase, 3), 0xC0])

    def _ids(self, tokens: int, salt: int) -> list[int]:
        return self.maker.ids(tokens, salt & ((1 << 63) - 1)) if tokens > 0 else []

    @staticmethod
    def _salt(index: int, phase: str, turn: int) -> int:
        return (index << 16) | (turn << 4) | _PHASE_SALT.get(phase, 3)


@dataclass(slots=True)
class _History:
    index: int
    phase: str
    turns: int
    rng: np.random.Generator
