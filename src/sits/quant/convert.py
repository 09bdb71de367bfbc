"""Dense matrices to quantised ones, by precision and method; and weight objects from codes."""

from __future__ import annotations

import torch

from sits.errors import InputError
from sits.quant.formats import WeightCodes
from sits.quant.fp8 import Fp8Codes
from sits.quant.fp8_linear import Fp8Weight
from sits.quant.hqq import refine
from sits.quant.int4 import Int4Codes
from sits.quant.int4_linear import Int4Weight
from sits.quant.linear import LinearWeight
from sits.quant.precision import Precision


def scale_dtype_for(dtype: torch.dtype) -> torch.dtype:
    """Scales are stored in the model's dtype when that has 16 bits, else in float16."""
    return dtype if dtype in (torch.float16, torch.bfloat16) else torch.float16


def quantize(
    weight: torch.Tensor, precision: Precision, method: str = "rtn", scale_dtype: torch.dtype = torch.float16
) -> WeightCodes:
    """weight[N, K] -> codes. ``method`` is ``rtn`` or ``hqq`` (INT4 only; FP8 always rounds to nearest)."""
    if precision.kind == "fp8":
        return Fp8Codes.from_dense(weight, scale_dtype)
    if precision.kind != "int4":
        raise InputError(f"{precision} is not a quantized precision")
    if method == "hqq":
        return refine(weight, precision.group_size, precision.zero, scale_dtype)
    return Int4Codes.from_dense(weight, precision.group_size, precision.zero, scale_dtype)


def weight_object(codes: WeightCodes, bias: torch.Tensor | None = None) -> LinearWeight:
    """The weight the model multiplies by, on the device of the codes."""
    return Int4Weight(codes, bias) if isinstance(codes, Int4Codes) else Fp8Weight(codes, bias)


def stack(parts: list[WeightCodes]) -> WeightCodes | None:
    """Fuse the parts of one linear by rows; None when they are of different kinds or group sizes."""
    int4 = [part for part in parts if isinstance(part, Int4Codes)]
    fp8 = [part for part in parts if isinstance(part, Fp8Codes)]
    if len(int4) == len(parts) and len({part.group_size for part in int4}) == 1:
        return Int4Codes.cat(int4)
    return Fp8Codes.cat(fp8) if len(fp8) == len(parts) else None
