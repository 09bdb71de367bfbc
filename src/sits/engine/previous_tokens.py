"""Puts the tokens that one step chose into the inputs of the next, without the host.

``ids[T]`` int64 holds token ids, or ``-1 - i`` for token ``i`` of the step before; ``chosen[R]`` int64 holds what
that step chose. A row that got no token (-1: its logits were not finite) is over; its place is filled with token 0.
"""

from __future__ import annotations

import torch


def fill_in(ids: torch.Tensor, chosen: torch.Tensor) -> None:
    """Replace the references in ``ids`` in place. One launch on a GPU, which a graph may capture."""
    if ids.device.type == "cuda":
        from sits.kernels.triton.previous_tokens import fill_in as launch

        launch(ids, chosen)
        return
    known = chosen.index_select(0, (-1 - ids).clamp_(0, chosen.shape[0] - 1)).clamp_(min=0)
    torch.where(ids < 0, known, ids, out=ids)
