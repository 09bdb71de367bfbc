"""Prompts through INT4 weights at the FP8 rate: the weight goes to an e4m3 scratch with a scale per row, then cuBLAS.

Activations are rounded to e4m3 per token and weights to 8 bits on the way: W8A8 arithmetic on INT4 storage. It runs
only where it is asked for: engine option ``int4_prefill="fp8"``, or ``SITS_INT4_PREFILL=fp8``.
"""

from __future__ import annotations

import os
from typing import Any

import torch

LEAST_ROWS = 1024  # under it the scratch costs more than the faster product saves


def asked_for() -> bool:
    """Whether the environment asks for it where the engine option does not."""
    return os.environ.get("SITS_INT4_PREFILL", "exact") == "fp8"


def layout_of(weight: Any) -> Any:
    """The layout of a linear's weight (``sits.quant.linear``) that the scratch can be made from, or None."""
    layout = weight.held("wgmma")
    if layout is None or layout.rows % 16 or torch.cuda.get_device_capability() < (8, 9):
        return None
    return layout


def fp8_form(layout: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [N, K] in a scratch the next call overwrites, scales [N]); safe in stream order."""
    from sits.kernels.cuda.int4 import make_fp8

    return make_fp8(layout)
