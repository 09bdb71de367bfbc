"""What one step computes, as the scheduler decided it: plain lists, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from sits.engine.request import Request


@dataclass(slots=True)
class StepBatch:
    """Rows of a step: the first ``num_decodes`` have one token each, prefill chunks follow."""

    index: int
    name: str  # entity of the step in the event log
    requests: list[Request]
    counts: list[int]  # tokens of each row: token_ids[num_computed : num_computed + count]
    num_decodes: int
    sample_rows: list[int] = field(default_factory=list)  # rows whose last token is the last one known: they sample
    begin_event: int = -1

    @property
    def num_tokens(self) -> int:
        """Tokens in the step."""
        return sum(self.counts)


@dataclass(slots=True)
class StepResult:
    """What the device gave back, one entry per ``sample_rows``."""

    tokens: list[int]  # -1: the logits of that row were not finite
    logprobs: list[tuple[float, list[tuple[int, float]]] | None] | None = None  # own, then alternatives
