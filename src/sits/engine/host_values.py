"""Numbers between the host and a device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def to_device(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of (nested) numbers. A copy from pageable memory would wait for the stream; this one does not."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def to_host(tensor: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor in pinned memory (the first entries of ``into``, if given), once the stream has come so far."""
    if into is None:
        into = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    else:
        into = into[: tensor.shape[0]]
    return into.copy_(tensor, non_blocking=True)
