"""What one step computes, as the scheduler decided it: plain lists, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from sits.engine.request import Request


@dataclass(slots=True)
class StepBatch:
    """Rows of a step: the first ``num_decodes`` have one token each, prefill chunks follow.

    A decision may be made while the step before it still runs. Then the token that a row decodes may not be known
    on the host: its entry in ``decode_ids`` is ``-1 - i``, where ``i`` is its place among the tokens that the step
    before chooses.
    """

    index: int
    name: str  # entity of the step in the event log
    requests: list[Request]
    counts: list[int]  # tokens of each row: the positions starts : starts + count
    num_decodes: int
    sample_rows: list[int] = field(default_factory=list)  # rows whose last token is the last one known: they sample
    starts: list[int] = field(default_factory=list)  # first position of each row; default: what is not computed yet
    decode_ids: list[int] = field(default_factory=list)  # the token of each decode row, or -1 - i

    def __post_init__(self) -> None:
        if not self.starts:
            self.starts = [request.num_computed for request in self.requests]
            decodes = zip(self.requests[: self.num_decodes], self.starts)
            self.decode_ids = [request.token_ids[start] for request, start in decodes]

    @property
    def num_tokens(self) -> int:
        """Tokens in the step."""
        return self.num_decodes + sum(self.counts[self.num_decodes :])

    @property
    def only_decodes(self) -> bool:
        """Whether every row has one token and samples."""
        return self.num_decodes == len(self.requests) == len(self.sample_rows)

    @property
    def output_indices(self) -> list[int]:
        """For each row that samples, how many output tokens come before the one it chooses."""
        requests, starts, counts = self.requests, self.starts, self.counts
        return [starts[row] + counts[row] - requests[row].prompt_tokens for row in self.sample_rows]

    def without_token(self, result: StepResult) -> set[Request]:
        """The requests whose logits were not finite."""
        if -1 not in result.tokens:
            return set()
        return {self.requests[row] for row, token in zip(self.sample_rows, result.tokens) if token < 0}


@dataclass(slots=True)
class StepResult:
    """What the device gave back, one entry per ``sample_rows``."""

    tokens: list[int]  # -1: the logits of that row were not finite
    logprobs: list[tuple[float, list[tuple[int, float]]] | None] | None = None  # own, then alternatives
