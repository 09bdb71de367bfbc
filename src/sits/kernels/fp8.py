"""FP8 (e4m3) values with one scale per row: activations per token, weights per output."""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
FP8_DTYPE = torch.float8_e4m3fn


def quantize_rows(x: torch.Tensor, scale_dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """x[M, K] -> (e4m3 values [M, K], float32 scale [M]); one scale per row, absmax / 448 rounded to ``scale_dtype``.

    An all-zero row gets the smallest normal scale. Values saturate at +-448, as e4m3fn would turn overflow into NaN.
    """
    wide = x.float()
    scale = (wide.abs().amax(-1) / E4M3_MAX).to(scale_dtype).float()
    # A comparison with NaN is false: it must stay in the scale, so that callers can see it.
    scale = torch.where(scale == 0, torch.finfo(scale_dtype).tiny, scale)
    return (wide / scale.unsqueeze(-1)).clamp_(-E4M3_MAX, E4M3_MAX).to(FP8_DTYPE), scale
