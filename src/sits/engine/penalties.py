"""Repetition, presence and frequency penalties, with the token counts kept on the device.

The tables exist only once a request asks for a penalty. A row of them belongs to the request that has that row in
the batch tables; it is rebuilt when the owner changes or was preempted, and advanced by one token otherwise.
"""

from __future__ import annotations

import torch

from sits.engine.host_values import to_device
from sits.engine.request import Request


class PenaltyTables:
    """Per row: how often each token is in the output, and whether it is in the prompt."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device):
        self._counts = torch.zeros(rows, vocab_size, dtype=torch.float32, device=device)
        self._in_prompt = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device)
        self._owner: list[tuple[Request, int] | None] = [None] * rows  # and how many of its tokens are counted
        self._device = device

    def apply(self, logits: torch.Tensor, positions: list[int], requests: list[Request]) -> None:
        """Penalise in place the rows ``positions`` of logits[R, V], which belong to ``requests``."""
        self._update(requests)
        rows = self._index([request.row for request in requests])
        at = self._index(positions)
        columns = [
            [request.params.repetition_penalty, request.params.presence_penalty, request.params.frequency_penalty]
            for request in requests
        ]
        table = to_device(columns, torch.float32, self._device)
        repetition, presence, frequency = table.T.unsqueeze(2)  # each [P, 1]
        part = logits.index_select(0, at)
        counts = self._counts.index_select(0, rows)
        in_output = counts > 0
        seen = in_output | self._in_prompt.index_select(0, rows)
        part = torch.where(seen, torch.where(part > 0, part / repetition, part * repetition), part)
        part = part - presence * in_output - frequency * counts
        logits.index_copy_(0, at, part)

    def _update(self, requests: list[Request]) -> None:
        advanced = []
        for request in requests:
            if self._owner[request.row] == (request, request.num_tokens - 1):
                advanced.append(request)
            elif self._owner[request.row] != (request, request.num_tokens):
                self._rebuild(request)
            self._owner[request.row] = (request, request.num_tokens)
        if advanced:
            rows = self._index([request.row for request in advanced])
            tokens = self._index([request.token_ids[-1] for request in advanced])
            one = torch.ones(len(advanced), device=self._device)
            self._counts.index_put_((rows, tokens), one, accumulate=True)

    def _rebuild(self, request: Request) -> None:
        counts, in_prompt = self._counts[request.row].zero_(), self._in_prompt[request.row].zero_()
        in_prompt[self._index(request.token_ids[: request.prompt_tokens])] = True
        if request.output_tokens:
            output = self._index(request.output_ids)
            counts.index_put_((output,), torch.ones(len(output), device=self._device), accumulate=True)

    def _index(self, values: list[int]) -> torch.Tensor:
        return to_device(values, torch.int64, self._device)
