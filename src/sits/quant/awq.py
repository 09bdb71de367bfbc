"""AWQ checkpoints (GEMM layout): ``qweight`` int32 [K, N / 8], ``qzeros`` int32 [G, N / 8], ``scales`` [G, N].

Eight neighbouring outputs share a word, in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up. Zero points are
stored as they are.
"""

from __future__ import annotations

from typing import Any

import torch

from sits.errors import InputError
from sits.quant.formats import CheckpointFormat, StoredTensors, four_bits, need
from sits.quant.int4 import Int4Codes, group_count
from sits.quant.packing import CODES_PER_WORD, pack_rows, unpack_rows

#: Output held by each nibble of a word, lowest bits first.
NIBBLE_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class AwqFormat(CheckpointFormat):
    """AutoAWQ checkpoints of version ``gemm``."""

    name = "awq"

    def __init__(self, config: dict[str, Any]):
        four_bits(config.get("bits", config.get("w_bit")), "AWQ")
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise InputError(f"AWQ layout {version!r} is not supported", "Checkpoints of version gemm are read")
        self.group_size = int(config.get("group_size", config.get("q_group_size", 128)))

    def is_quantized(self, module: str, tensors: StoredTensors) -> bool:
        return tensors.has(f"{module}.qweight")

    def shape(self, module: str, tensors: StoredTensors) -> tuple[int, int]:
        stored = need(tensors, f"{module}.qweight")
        return stored.shape[1] * CODES_PER_WORD, stored.shape[0]

    def read(self, module: str, tensors: StoredTensors) -> Int4Codes:
        rows, columns = self.shape(module, tensors)
        group_size = columns if self.group_size == -1 else self.group_size
        scale = need(tensors, f"{module}.scales").T.contiguous()
        groups = group_count(columns, group_size)
        if tuple(scale.shape) != (rows, groups):
            raise InputError(
                f"{module}.scales has {list(scale.T.shape)} values, [{groups}, {rows}] are expected for groups of "
                f"{group_size}"
            )
        q = unpack_outputs(need(tensors, f"{module}.qweight")).T.contiguous()
        zero = unpack_outputs(need(tensors, f"{module}.qzeros")).T
        return Int4Codes.from_zero_points(q, scale, zero, group_size)


def unpack_outputs(words: torch.Tensor) -> torch.Tensor:
    """int32 [M, N / 8] in AWQ's nibble order -> uint8 [M, N]."""
    codes = unpack_rows(words, words.shape[1] * CODES_PER_WORD).view(words.shape[0], -1, CODES_PER_WORD)
    outputs = torch.empty_like(codes)
    outputs[..., list(NIBBLE_ORDER)] = codes
    return outputs.flatten(1)


def pack_outputs(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [M, N] -> int32 [M, N / 8]; inverse of ``unpack_outputs``. N must be a multiple of 8."""
    grouped = codes.view(codes.shape[0], -1, CODES_PER_WORD)[..., list(NIBBLE_ORDER)]
    return pack_rows(grouped.flatten(1))
