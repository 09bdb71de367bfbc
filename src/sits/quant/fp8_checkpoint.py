"""FP8 checkpoints: ``weight`` float8_e4m3fn [N, K] with ``weight_scale`` per tensor ([] or [1]) or per row ([N, 1]).

A static ``input_scale``, where present, is not used: activations get a scale per token, which is at least as exact.
"""

from __future__ import annotations

from typing import Any

from sits.errors import InputError
from sits.quant.formats import CheckpointFormat, StoredTensors, need
from sits.quant.fp8 import FP8_DTYPE, Fp8Codes


class Fp8Format(CheckpointFormat):
    """``quant_method: fp8`` without block scales."""

    name = "fp8"

    def __init__(self, config: dict[str, Any]):
        if config.get("weight_block_size"):
            raise InputError(
                f"FP8 weights with a scale per {config['weight_block_size']} block are not supported",
                "FP8 with one scale per tensor or per row is read",
            )

    def is_quantized(self, module: str, tensors: StoredTensors) -> bool:
        return tensors.has(f"{module}.weight_scale")

    def shape(self, module: str, tensors: StoredTensors) -> tuple[int, int]:
        weight = need(tensors, f"{module}.weight")
        return weight.shape[0], weight.shape[1]

    def read(self, module: str, tensors: StoredTensors) -> Fp8Codes:
        return read_fp8(module, tensors)


def read_fp8(module: str, tensors: StoredTensors) -> Fp8Codes:
    """One FP8 linear; a scale of the whole tensor is repeated for each row."""
    weight, scale = need(tensors, f"{module}.weight"), need(tensors, f"{module}.weight_scale").float()
    if weight.dtype != FP8_DTYPE:
        raise InputError(f"{module}.weight is {weight.dtype}, expected {FP8_DTYPE}")
    rows = weight.shape[0]
    if scale.numel() not in (1, rows):
        raise InputError(f"{module}.weight_scale has {scale.numel()} scales for {rows} rows")
    return Fp8Codes(weight, scale.reshape(-1).expand(rows).contiguous())
