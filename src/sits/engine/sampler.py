"""Logits to tokens, on the device, for requests with different parameters in one batch.

Nothing here waits for the device: what must be known on the host (who is greedy, who has a filter) is known from
the requests. A row whose logits are not finite gets token -1, so the check costs no extra transfer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sits.engine.filters import keep_threshold
from sits.engine.host_values import to_device, to_host
from sits.engine.noise import uniform
from sits.engine.penalties import PenaltyTables
from sits.engine.request import Request
from sits.engine.step_batch import StepResult


@dataclass(slots=True)
class Sampled:
    """Chosen tokens, still on the device."""

    tokens: torch.Tensor  # [R] int64; -1 where the logits were not finite
    wanted: list[int] | None = None  # rows with log-probabilities
    own: torch.Tensor | None = None  # [len(wanted)]
    top_values: torch.Tensor | None = None  # [len(wanted), most alternatives asked for]
    top_tokens: torch.Tensor | None = None
    counts: list[int] | None = None  # alternatives of each wanted row

    def copy_to_host(self, tokens: torch.Tensor) -> Sampled:
        """The same in pinned memory, once the stream has come so far; the tokens go into ``tokens``."""
        copies = (self.own, self.top_values, self.top_tokens)
        own, values, ids = (None if tensor is None else to_host(tensor) for tensor in copies)
        return Sampled(to_host(self.tokens, tokens), self.wanted, own, values, ids, self.counts)

    def fetch(self) -> StepResult:
        """Wait for the device and bring the result to the host."""
        tokens = self.tokens.tolist()
        if self.wanted is None:
            return StepResult(tokens)
        assert self.own is not None
        assert self.top_values is not None
        assert self.top_tokens is not None
        assert self.counts is not None
        entries: list[tuple[float, list[tuple[int, float]]] | None] = [None] * len(tokens)
        rows = zip(self.wanted, self.own.tolist(), self.top_tokens.tolist(), self.top_values.tolist(), self.counts)
        for row, own, ids, values, count in rows:
            entries[row] = (own, list(zip(ids[:count], values[:count])))
        return StepResult(tokens, entries)


class Sampler:
    """Samples for all requests of one engine."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device):
        self._vocab_size = vocab_size
        self._max_rows = max_rows
        self._device = device
        self._penalties: PenaltyTables | None = None

    def sample(
        self,
        logits: torch.Tensor,
        requests: list[Request],
        output_indices: list[int] | None = None,
        greedy: torch.Tensor | None = None,
    ) -> Sampled:
        """logits[R, V] float32, one row for each request. May write into ``logits``.

        ``output_indices``: how many output tokens each request has before this one; by default those it knows.
        ``greedy[R]``: the most likely tokens, where a captured graph has chosen them already.
        """
        if all(request.plain_greedy for request in requests):
            return Sampled(choose_greedy(logits) if greedy is None else greedy)
        params = [request.params for request in requests]
        if output_indices is None:
            output_indices = [request.output_tokens for request in requests]
        finite = None if self._device.type == "cuda" else logits.amax(-1).isfinite()
        wanted = [row for row, p in enumerate(params) if p.logprobs is not None]
        wanted_rows = self._put(wanted)
        log_probabilities = logits.index_select(0, wanted_rows).log_softmax(-1) if wanted else None
        self._forbid_early_stops(logits, requests, output_indices)
        penalised = [row for row, p in enumerate(params) if p.penalised]
        if penalised:
            if self._penalties is None:
                self._penalties = PenaltyTables(self._max_rows, self._vocab_size, self._device)
            self._penalties.apply(logits, penalised, [requests[row] for row in penalised])
        random = [row for row, p in enumerate(params) if not p.greedy]
        tokens = choose_greedy(logits) if len(random) < len(requests) else None
        if random:
            at = self._put(random)
            drawn = self._draw(logits, at, [requests[row] for row in random], [output_indices[row] for row in random])
            tokens = drawn if tokens is None else tokens.index_copy_(0, at, drawn)
        assert tokens is not None
        if finite is not None:  # else the kernels have seen to it
            tokens = torch.where(finite, tokens, -1)
        result = Sampled(tokens)
        if log_probabilities is not None:
            result.wanted = wanted
            result.counts = [params[row].logprobs or 0 for row in wanted]
            chosen = tokens.index_select(0, wanted_rows).clamp(min=0)
            result.own = log_probabilities.gather(1, chosen.unsqueeze(1)).squeeze(1)
            result.top_values, result.top_tokens = log_probabilities.topk(max(result.counts), dim=-1)
        return result

    def _put(self, values: list[int]) -> torch.Tensor:
        return to_device(values, torch.int64, self._device)

    def _draw(
        self, logits: torch.Tensor, rows: torch.Tensor, requests: list[Request], output_indices: list[int]
    ) -> torch.Tensor:
        """Random tokens [R] from the filtered distributions of ``rows[R]`` of logits, by inverting their cumulative
        sums. Overwrites these rows."""
        values = [
            [p.temperature, p.top_p, p.min_p, p.top_k, uniform(request.seed, index)]
            for request, index in zip(requests, output_indices)
            for p in (request.params,)
        ]
        table = to_device(values, torch.float32, self._device)
        if self._device.type == "cuda":
            from sits.kernels.triton.draw import draw

            return draw(logits, rows, table)
        temperature, top_p, min_p, top_k, noise = table.unbind(1)
        scaled = logits.index_select(0, rows) / temperature.unsqueeze(1)
        filtered = [request.params for request in requests if request.params.filtered]
        if filtered:
            bounded = all(p.top_k > 0 or p.top_p >= 1.0 for p in filtered)
            largest_k = max((p.top_k for p in filtered), default=0) if bounded else 0
            threshold = keep_threshold(scaled, top_k.long(), top_p, min_p, max(largest_k, 1) if bounded else 0)
            scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
        probabilities = scaled.softmax(-1)
        total = probabilities.cumsum(-1)
        reached = (total > noise.unsqueeze(1) * total[:, -1:]) & (probabilities > 0)
        return reached.to(torch.uint8).argmax(-1)  # the first one

    def _forbid_early_stops(self, logits: torch.Tensor, requests: list[Request], output_indices: list[int]) -> None:
        for row, (request, index) in enumerate(zip(requests, output_indices)):
            if index < request.params.min_tokens and request.stop_ids:
                logits[row].index_fill_(0, self._put(list(request.stop_ids)), -torch.inf)


def choose_greedy(logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """logits[R, V] -> the most likely token of each row [R] int64; -1 where a logit is NaN or the largest infinite.

    ``out[R]`` int64 takes the result if it is given.
    """
    if logits.device.type == "cuda":
        from sits.kernels.triton.sampling import argmax_finite

        return argmax_finite(logits, out)
    best = logits.max(-1)
    tokens = torch.where(best.values.isfinite(), best.indices, -1)
    return tokens if out is None else out.copy_(tokens)
