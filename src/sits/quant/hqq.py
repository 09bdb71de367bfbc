"""Half-quadratic refinement of an INT4 grid: no calibration data, a few passes over the weight.

Method: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023). It minimises
sum |w - w_q|^p with p < 1, so that a few outliers may keep a large error while the many small weights fit better.
Alternate: (1) codes for the grid, (2) an error term e by soft shrinkage of w - w_q, (3) the grid that fits w - e in
the least-squares sense. The paper moves the zero point; here the scale is fitted too: symmetric grids have only
that. Errors are measured in steps of the starting grid, so one setting suits weights of any size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sits.quant.int4 import (
    Int4Codes,
    ZeroKind,
    encode,
    finish,
    grouped,
    integer_zero,
    round_scale,
    row_chunks,
    span_grid,
)


@dataclass(frozen=True)
class HqqSettings:
    """Of the half-quadratic solver."""

    norm: float = 0.7  # p of the error norm
    beta: float = 10.0  # weight of the quadratic coupling, grows by ``kappa`` each pass
    kappa: float = 1.01
    passes: int = 20


def refine(
    weight: torch.Tensor,
    group_size: int = 32,
    zero: ZeroKind = "symmetric",
    scale_dtype: torch.dtype = torch.float16,
    settings: HqqSettings | None = None,
) -> Int4Codes:
    """Like ``Int4Codes.from_dense``, with a refined grid. No group's error norm is above round-to-nearest's."""
    settings = settings or HqqSettings()
    return Int4Codes.cat([_refine(rows, group_size, zero, scale_dtype, settings) for rows in row_chunks(weight)])


def _refine(
    weight: torch.Tensor, group_size: int, zero: ZeroKind, scale_dtype: torch.dtype, settings: HqqSettings
) -> Int4Codes:
    groups = grouped(weight, group_size)  # [N, G, g]
    scale, minimum = span_grid(groups, zero, scale_dtype)
    unit = scale.unsqueeze(-1)
    codes = encode(groups, scale, minimum)
    best = [error_norm(groups, codes, scale, minimum, unit, settings.norm), codes, scale, minimum]
    beta = settings.beta
    for _ in range(settings.passes):
        error = (groups - (codes * scale.unsqueeze(-1) + minimum.unsqueeze(-1))) / unit
        target = groups - shrink(error, beta, settings.norm) * unit
        scale, minimum = fit_grid(target, codes, scale, zero, scale_dtype)
        codes = encode(groups, scale, minimum)
        norm = error_norm(groups, codes, scale, minimum, unit, settings.norm)
        better = norm < best[0]  # [N, G]: each group keeps its own best pass
        best[0] = torch.where(better, norm, best[0])
        best[1] = torch.where(better.unsqueeze(-1), codes, best[1])
        best[2] = torch.where(better, scale, best[2])
        best[3] = torch.where(better, minimum, best[3])
        if not bool(better.any()):
            break
        beta *= settings.kappa
    return finish(best[1], best[2], best[3], weight.shape[1], group_size)


def shrink(error: torch.Tensor, beta: float, norm: float) -> torch.Tensor:
    """Generalised soft thresholding: sign(x) max(|x| - |x|^(p - 1) / beta, 0), the minimiser of step (2)."""
    size = error.abs()
    return error.sign() * (size - size.clamp_min(1e-8).pow(norm - 1.0) / beta).clamp_min_(0.0)


def fit_grid(
    target: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero: ZeroKind, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Least-squares scale and minimum [N, G] of target ~ codes * scale + minimum, as ``zero`` allows."""
    if zero == "symmetric":
        scale = fit_scale(target, codes - 8.0, scale, scale_dtype)
        return scale, scale * -8.0
    mean_code, mean_target = codes.mean(-1, keepdim=True), target.mean(-1, keepdim=True)
    centred = codes - mean_code
    power = (centred * centred).sum(-1)
    fitted = (centred * (target - mean_target)).sum(-1) / power.clamp_min(1e-6)
    scale = round_scale(torch.where((power > 1e-3) & (fitted > 0), fitted, scale), scale_dtype)
    minimum = (mean_target - mean_code * scale.unsqueeze(-1)).squeeze(-1)
    if zero == "integer":
        point = integer_zero(minimum, scale)
        scale = fit_scale(target, codes - point.unsqueeze(-1), scale, scale_dtype)  # best for the rounded zero
        return scale, scale * -point
    return scale, round_scale(minimum, scale_dtype, positive=False)


def fit_scale(
    target: torch.Tensor, steps: torch.Tensor, scale: torch.Tensor, scale_dtype: torch.dtype
) -> torch.Tensor:
    """Least-squares scale [N, G] of target ~ steps * scale; the old one where there is none above 0."""
    power = (steps * steps).sum(-1)
    fitted = (steps * target).sum(-1) / power.clamp_min(1.0)
    return round_scale(torch.where((power > 0) & (fitted > 0), fitted, scale), scale_dtype)


def error_norm(
    groups: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor,
    unit: torch.Tensor,
    norm: float,
) -> torch.Tensor:
    """Sum over a group of |error in steps|^p: [N, G]."""
    error = (groups - (codes * scale.unsqueeze(-1) + minimum.unsqueeze(-1))) / unit
    return error.abs().pow(norm).sum(-1)
