"""INT4 weights through Humming (package ``humming-kernels``): the best GEMM there is from a batch of about 16 up.

Humming compiles a kernel per layer shape at first use (seconds, then cached on disk by itself). It reads the
compressed-tensors form, so symmetric weights and integer zero points are handed over as such a checkpoint would hold
them; a float minimum has no such form and is refused.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@cache
def available() -> bool:
    """Whether Humming is installed and the card is supported (compute capability 7.5 or newer)."""
    if importlib.util.find_spec("humming") is None or not torch.cuda.is_available() or torch.version.hip:
        return False
    return torch.cuda.get_device_capability() >= (7, 5)


@dataclass(slots=True)
class HummingWeight:
    """A weight inside a Humming layer; ``fp8`` layers round activations to e4m3 per token (W4A8)."""

    layer: Any
    rows: int
    columns: int

    def tensors(self) -> list[torch.Tensor]:
        return [parameter.data for parameter in self.layer.parameters()]


def can_pack(columns: int, rows: int, group_size: int) -> bool:
    """Shapes Humming takes without padding."""
    return columns % 128 == 0 and rows % 64 == 0 and group_size in (32, 64, 128)


def pack_words(q: torch.Tensor) -> torch.Tensor:
    """q[N, K] codes -> int32 [N, K / 8], eight per word from the low bits up: compressed-tensors' order."""
    rows, columns = q.shape
    words = torch.empty(rows, columns // 8, dtype=torch.int32, device=q.device)
    shift = torch.arange(0, 32, 4, device=q.device, dtype=torch.int32)
    for start in range(0, rows, 4096):
        part = q[start : start + 4096].view(-1, columns // 8, 8)
        words[start : start + 4096] = (part.int() << shift).sum(-1, dtype=torch.int32)
    return words


def pack(
    q: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    group_size: int,
    dtype: torch.dtype,
    fp8_activations: bool = False,
) -> HummingWeight:
    """q[N, K] uint8, scale[N, G], zero[N, G] uint8 integer zero points or None for symmetric (8) -> a Humming layer.

    ``dtype`` is that of the activations (fp16 or bf16) and of the stored scales.
    """
    from humming.layer import HummingLayer

    rows, columns = q.shape
    config = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "type": "int", "num_bits": 4,
        "strategy": "group", "symmetric": zero is None, "group_size": group_size,
    }  # fmt: skip
    with torch.device(q.device):  # its parameters would be made on the host otherwise
        layer = HummingLayer(
            shape_n=rows,
            shape_k=columns,
            weight_config=config,
            input_config={"dtype": "float8e4m3"} if fp8_activations else None,
            torch_dtype=dtype,
        )
    tensors = {
        "weight_packed": pack_words(q),
        "weight_scale": scale.to(dtype),
        "weight_shape": torch.tensor([rows, columns], device=q.device),
    }
    if zero is not None:
        tensors["weight_zero_point"] = pack_words(zero.T.contiguous()).T.contiguous()  # eight rows per word
    layer.load_from_tensors(tensors)
    layer.transform(allow_inplace=True)
    return HummingWeight(layer, rows, columns)


def linear(x: torch.Tensor, weight: HummingWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x[M, K] -> [M, N] in x's dtype. Works under CUDA graph capture once this M's kernel has been compiled."""
    out = weight.layer(x.contiguous())
    return out if bias is None else out.add_(bias)
