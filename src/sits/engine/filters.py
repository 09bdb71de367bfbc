"""Which tokens may be chosen: top-k, top-p and min-p of many rows at once, as one threshold per row.

Every filter keeps the most likely tokens, so together they are a threshold on the logit: the largest of the three.
Tokens that tie with the threshold stay, which makes the result independent of any sort order.
"""

from __future__ import annotations

import torch

_CPU_CANDIDATES = 256  # a full sort of a vocabulary takes milliseconds on a CPU; the head is nearly always enough


def keep_threshold(
    logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, largest_k: int
) -> torch.Tensor:
    """logits[R, V] float32 (after temperature) -> threshold[R, 1]; tokens with ``logit >= threshold`` may be chosen.

    ``top_k[R]`` int64 (0 = off), ``top_p[R]`` (1 = off), ``min_p[R]`` (0 = off). ``largest_k`` is the largest
    ``top_k`` when *every* row that has a top-p also has a top-k, else 0: then more than a head may be needed.
    """
    vocab = logits.shape[-1]
    candidates = min(vocab, largest_k) if largest_k else vocab
    if logits.device.type == "cpu" and not largest_k:
        candidates = min(vocab, max(_CPU_CANDIDATES, int(top_k.max())))
    threshold, enough = _threshold(logits, top_k, top_p, min_p, candidates)
    if candidates < vocab and not largest_k and not bool(enough.all()):  # only on a CPU, where looking is free
        threshold, _ = _threshold(logits, top_k, top_p, min_p, vocab)
    return threshold


def _threshold(
    logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if candidates < logits.shape[-1]:
        ordered = logits.topk(candidates, dim=-1).values  # [R, C], descending
    else:
        ordered = logits.sort(dim=-1, descending=True).values
    lowest = torch.full_like(top_p, -torch.inf).unsqueeze(1)
    use_k = ((top_k > 0) & (top_k < logits.shape[-1])).unsqueeze(1)
    kth = ordered.gather(1, top_k.clamp(1, candidates).sub(1).unsqueeze(1))
    after_k = torch.where(use_k, kth, lowest)
    # Top-p: the smallest set of the most likely tokens, among those left, whose mass reaches p.
    left = logits.masked_fill(logits < after_k, -torch.inf)
    mass = (ordered - left.logsumexp(-1, keepdim=True)).exp().masked_fill(ordered < after_k, 0.0)
    total = mass.cumsum(-1)
    wanted = top_p.unsqueeze(1)
    count = ((total - mass) < wanted).sum(-1, keepdim=True).clamp(1, candidates)
    use_p = wanted < 1.0
    after_p = torch.where(use_p, ordered.gather(1, count - 1), lowest)
    after_min = ordered[:, :1] + min_p.unsqueeze(1).log()  # log(0) = -inf switches it off
    enough = (~use_p | (total[:, -1:] >= wanted) | use_k).squeeze(1)
    return torch.maximum(torch.maximum(after_k, after_p), after_min), enough
