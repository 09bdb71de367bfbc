"""GGUF Q4_0 and Q4_1 blocks as ``Int4Codes``: the same numbers, no re-quantization.

A block is 32 weights of a row. Q4_0: float16 d, 16 bytes; w = d (q - 8). Q4_1: float16 d, float16 m, 16 bytes;
w = d q + m. Byte j holds weight j in its low nibble and weight j + 16 in its high one.
"""

from __future__ import annotations

import torch

from sits.errors import InputError
from sits.quant.int4 import Int4Codes

BLOCK = 32
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20}


def codes_from_blocks(raw: torch.Tensor, kind: str) -> Int4Codes:
    """raw uint8 [N, blocks * block bytes] of ``Q4_0`` or ``Q4_1`` -> codes [N, blocks * 32] in groups of 32."""
    if kind not in BLOCK_BYTES:
        raise InputError(f"GGUF type {kind} does not map onto INT4 codes", "Q4_0 and Q4_1 do")
    size = BLOCK_BYTES[kind]
    if raw.dim() != 2 or raw.dtype != torch.uint8 or raw.shape[1] % size:
        raise InputError(f"{kind} rows must be whole blocks of {size} bytes")
    rows = raw.shape[0]
    blocks = raw.reshape(rows, -1, size)
    header = blocks[..., : size - 16].contiguous().view(torch.float16).float()  # [N, G, 1 or 2]
    nibbles = blocks[..., size - 16 :]
    q = torch.cat([nibbles & 0xF, nibbles >> 4], dim=-1).reshape(rows, -1)
    scale = header[..., 0].contiguous()
    minimum = header[..., 1].contiguous() if kind == "Q4_1" else scale * -8.0
    return Int4Codes(q.contiguous(), scale, minimum, BLOCK)
