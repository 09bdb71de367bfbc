"""GPTQ checkpoints, 4 bit: ``qweight`` int32 [K / 8, N], ``qzeros`` int32 [G, N / 8], ``scales`` [G, N].

Version 1 (``checkpoint_format`` ``gptq``, the default) stores zero points less one; version 2 (``gptq_v2``) stores
them as they are. Taking one for the other shifts every weight by a step and gives noise. With activation order
(``desc_act``) ``g_idx`` [K] names each input's group.
"""

from __future__ import annotations

from typing import Any

import torch

from sits.errors import InputError
from sits.quant.compressed_tensors import in_group_order
from sits.quant.formats import CheckpointFormat, StoredTensors, four_bits, need
from sits.quant.int4 import Int4Codes, group_count
from sits.quant.packing import CODES_PER_WORD, unpack_rows

ZERO_OFFSET = {"gptq": 1, "gptq_v2": 0}


class GptqFormat(CheckpointFormat):
    """AutoGPTQ, GPTQModel and transformers checkpoints."""

    name = "gptq"

    def __init__(self, config: dict[str, Any]):
        four_bits(config.get("bits"), "GPTQ")
        version = config.get("checkpoint_format") or "gptq"
        if version not in ZERO_OFFSET:
            raise InputError(
                f"GPTQ checkpoint format {version!r} is not supported",
                f"Supported: {', '.join(ZERO_OFFSET)} (convert runtime layouts such as marlin back first)",
            )
        self.offset = ZERO_OFFSET[version]
        self.group_size = int(config.get("group_size", 128))

    def is_quantized(self, module: str, tensors: StoredTensors) -> bool:
        return tensors.has(f"{module}.qweight")

    def shape(self, module: str, tensors: StoredTensors) -> tuple[int, int]:
        stored = need(tensors, f"{module}.qweight")
        return stored.shape[1], stored.shape[0] * CODES_PER_WORD

    def read(self, module: str, tensors: StoredTensors) -> Int4Codes | torch.Tensor:
        rows, columns = self.shape(module, tensors)
        group_size = columns if self.group_size == -1 else self.group_size
        scale = need(tensors, f"{module}.scales").T.contiguous()  # [N, G]
        groups = group_count(columns, group_size)
        if tuple(scale.shape) != (rows, groups):
            raise InputError(
                f"{module}.scales has {list(scale.T.shape)} values, [{groups}, {rows}] are expected for groups of "
                f"{group_size}"
            )
        q = unpack_rows(need(tensors, f"{module}.qweight").T.contiguous(), columns)
        stored_zero = unpack_rows(need(tensors, f"{module}.qzeros"), rows).T  # [N, G]
        # A zero point of 0 is stored as -1 = 15 by version 1: the sum wraps back.
        zero = (stored_zero.to(torch.int16) + self.offset) & 15
        codes = Int4Codes.from_zero_points(q, scale, zero, group_size)
        return in_group_order(codes, tensors.get(f"{module}.g_idx")) if tensors.has(f"{module}.g_idx") else codes
