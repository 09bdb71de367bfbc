"""Eight 4-bit codes in one 32-bit word, and back, exactly, for every shape.

Code ``k`` of a row sits in word ``k // 8`` at bits ``4 * (k % 8)``, the order of compressed-tensors'
``pack-quantized``. Tail codes of a row are 0. Rows can be padded to a byte multiple, so that each starts
aligned (16 for 128-bit loads).
"""

from __future__ import annotations

import torch

from sits.errors import InputError

CODES_PER_WORD = 8


def words_per_row(columns: int, align_bytes: int = 4) -> int:
    """32-bit words of a row of ``columns`` codes whose size is rounded up to ``align_bytes`` (a multiple of 4)."""
    if align_bytes < 4 or align_bytes % 4:
        raise ValueError(f"align_bytes must be a positive multiple of 4, not {align_bytes}")
    words = -(-columns // CODES_PER_WORD)
    step = align_bytes // 4
    return -(-words // step) * step


def pack_rows(codes: torch.Tensor, align_bytes: int = 4) -> torch.Tensor:
    """codes[N, K] of 0..15 (any integer dtype) -> int32 [N, words_per_row(K, align_bytes)]."""
    rows, columns = codes.shape
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) > 15):
        raise InputError("INT4 codes must lie in 0..15", "Shift signed codes by 8 before packing")
    words = words_per_row(columns, align_bytes)
    wide = torch.zeros(rows, words * CODES_PER_WORD, dtype=torch.uint8, device=codes.device)
    wide[:, :columns] = codes
    # Byte j holds codes 2j (low nibble) and 2j + 1; four bytes are one little-endian word.
    packed = wide[:, 0::2] | (wide[:, 1::2] << 4)
    return packed.contiguous().view(torch.int32).reshape(rows, words)


def unpack_rows(words: torch.Tensor, columns: int) -> torch.Tensor:
    """int32 [N, W] -> uint8 codes [N, columns]; inverse of ``pack_rows`` for any padding."""
    rows, width = words.shape
    if words.dtype != torch.int32:
        raise InputError(f"packed INT4 weights must be int32, not {words.dtype}")
    if width * CODES_PER_WORD < columns:
        raise InputError(f"{width} words of a row hold {width * CODES_PER_WORD} codes, {columns} are needed")
    packed = words.contiguous().view(torch.uint8).reshape(rows, width * 4)
    codes = torch.empty(rows, width * CODES_PER_WORD, dtype=torch.uint8, device=words.device)
    codes[:, 0::2] = packed & 0xF
    codes[:, 1::2] = packed >> 4
    return codes[:, :columns].contiguous()
