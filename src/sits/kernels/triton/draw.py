"""Random tokens from filtered distributions in one launch: temperature, top-k, top-p, min-p, inverse of the sum.

A program works on one row, so a row's token does not depend on the batch. It turns the logits into weights
``exp((x - max) / temperature)`` in place, finds each filter's threshold by cutting an interval of weights in four
until it holds one value (the bits of non-negative floats are in their order), and walks to the random share of what
is kept. A row of 128K weights stays in L2 between the passes; a sort would move it dozens of times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ONE = tl.constexpr(0x3F800000)  # the bits of 1.0, the largest weight
_NOWHERE = tl.constexpr(2147483647)


@triton.jit
def _largest_threshold(row, N, low, high, target, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest t in [low, high) so that the mass (or the count) of weights with bits >= t is at least target.

    Or a smaller one that keeps the same weights: it is enough when a single weight is left in [low, high).
    """
    lane = tl.arange(0, 4)
    high = tl.zeros([], tl.int32) + high
    beyond = tl.zeros([], tl.float32)  # mass of the weights >= high
    inside = tl.full([], float("inf"), tl.float32)  # mass of those in [low, high)
    one = tl.zeros([], tl.float32)
    while (high - low > 1) & (inside > 1.5 * one):
        step = (high - low + 3) // 4
        bounds = low + lane * step
        total = tl.zeros([BLOCK, 4], tl.float32)
        for start in range(0, N, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            weight = tl.load(row + columns, mask=columns < N, other=0.0)
            bits = weight.to(tl.int32, bitcast=True)
            value = tl.where(bits < high, weight if MASS else 1.0, 0.0)
            total += tl.where(bits[:, None] >= bounds[None, :], value[:, None], 0.0)
        sums = tl.sum(total, 0)
        enough = tl.sum((beyond + sums >= target).to(tl.int32), 0)
        over = tl.sum(tl.where(lane == enough, sums, 0.0), 0)
        inside = tl.sum(tl.where(lane == enough - 1, sums, 0.0), 0) - over
        beyond += over
        high = tl.minimum(high, low + tl.maximum(enough * step, 1))
        low += tl.maximum(enough - 1, 0) * step
        one = low.to(tl.float32, bitcast=True) if MASS else one * 0 + 1
    return low


@triton.jit
def draw_kernel(logits, stride, rows, parameters, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0)
    row = logits + tl.load(rows + at) * stride
    temperature = tl.load(parameters + at * 5)
    top_p = tl.load(parameters + at * 5 + 1)
    min_p = tl.load(parameters + at * 5 + 2)
    top_k = tl.load(parameters + at * 5 + 3)
    noise = tl.load(parameters + at * 5 + 4)

    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        value = tl.load(row + columns, mask=columns < N, other=float("-inf"))
        most = tl.maximum(most, tl.where(value == value, value, float("inf")))  # NaN is not finite either
    largest = tl.max(most, 0)
    token = tl.full([], -1, tl.int32)
    if (largest > float("-inf")) & (largest < float("inf")):
        for start in range(0, N, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            value = tl.load(row + columns, mask=columns < N, other=float("-inf"))
            tl.store(row + columns, tl.exp((value - largest) / temperature), mask=columns < N)
        tl.debug_barrier()  # other threads read these weights
        threshold = tl.full([], 1, tl.int32)  # a weight of zero is never chosen
        if (top_k > 0) & (top_k < N):
            threshold = _largest_threshold(row, N, threshold, _ONE + 1, top_k, False, BLOCK // 2)
        if top_p < 1:
            kept = tl.zeros([BLOCK], tl.float32)
            for start in range(0, N, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                weight = tl.load(row + columns, mask=columns < N, other=0.0)
                kept += tl.where(weight.to(tl.int32, bitcast=True) >= threshold, weight, 0.0)
            mass = tl.sum(kept, 0)
            # Weights below (1 - top_p) / N of the mass cannot hold 1 - top_p of it together.
            surely = ((1 - top_p) * mass / N * 0.99).to(tl.int32, bitcast=True)
            low = tl.minimum(tl.maximum(threshold, surely), _ONE)
            threshold = _largest_threshold(row, N, low, _ONE + 1, top_p * mass, True, BLOCK // 2)
        if min_p > 0:
            threshold = tl.minimum(tl.maximum(threshold, min_p.to(tl.int32, bitcast=True)), _ONE)

        total = 0.0
        for start in range(0, N, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            weight = tl.load(row + columns, mask=columns < N, other=0.0)
            total += tl.sum(tl.where(weight.to(tl.int32, bitcast=True) >= threshold, weight, 0.0), 0)
        wanted = noise * total
        reached = 0.0
        for start in range(0, N, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            weight = tl.load(row + columns, mask=columns < N, other=0.0)
            keep = weight.to(tl.int32, bitcast=True) >= threshold
            weight = tl.where(keep, weight, 0.0)
            before = reached
            reached += tl.sum(weight, 0)
            if (token < 0) & (reached > wanted):
                passed = keep & (before + tl.cumsum(weight, 0) > wanted)
                first = tl.min(tl.where(passed, columns, _NOWHERE), 0)
                last = tl.max(tl.where(keep, columns, -1), 0)  # where the two sums differ by rounding
                token = tl.where(first == _NOWHERE, last, first)
    tl.store(out + at, token.to(tl.int64))


def draw(logits: torch.Tensor, rows: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
    """Tokens [R] int64 for the rows ``rows[R]`` int64 of logits[B, V] float32, which are overwritten.

    ``parameters[R, 5]`` float32: temperature, top-p (1 = off), min-p (0 = off), top-k (0 = off), a number in [0, 1).
    -1 where a logit is NaN or the largest is infinite. Ties with a threshold are kept, as in ``engine.filters``.
    """
    count, vocabulary = rows.shape[0], logits.shape[1]
    assert logits.stride(1) == 1
    out = torch.empty(count, dtype=torch.int64, device=logits.device)
    if count:
        block = min(8192, triton.next_power_of_2(vocabulary))
        draw_kernel[(count,)](
            logits, logits.stride(0), rows, parameters, out, vocabulary, BLOCK=block, num_warps=max(1, block // 512)
        )
    return out
