"""How many tokens one step may hold. Decode tokens always go first; the rest is for prefill chunks."""

from __future__ import annotations

from typing import Protocol


class TokenBudget(Protocol):
    """Decides the size of the next step from what earlier ones cost."""

    def observe(self, step_seconds: float, tokens: int, decodes: int) -> None:
        """A step of ``tokens`` tokens, ``decodes`` of them decode rows, took ``step_seconds``."""

    def decide(self, decodes: int, waiting: int) -> int:
        """Tokens of the next step. Below ``decodes`` means that no prompt is worked on in this step."""


class FixedTokenBudget:
    """The same budget every step."""

    def __init__(self, tokens: int):
        self.tokens = tokens

    def observe(self, step_seconds: float, tokens: int, decodes: int) -> None:
        """Nothing to learn."""

    def decide(self, decodes: int, waiting: int) -> int:
        """The fixed budget."""
        return self.tokens
