"""The order INT4 weights lie in for ``decode_linear.cu``: made at load, never stored in a checkpoint.

For tiles of 16 rows and chunks of 64 k (lane = 4 g + t, g = 0..7, t = 0..3):

- codes ``[tiles, chunks, 32 lanes, 4 words]`` int32: word ``2 i + h`` of a lane holds row ``g + 8 h`` of the tile and
  k = ``32 i + 8 t .. + 7`` of the chunk; nibble ``j`` is k ``2 j``, nibble ``j + 4`` is k ``2 j + 1``.
- scales (and minimums) ``[tiles, chunks, 8, 4]`` fp16: entry ``2 i + h`` of ``g`` is row ``g + 8 h``, group ``i``.

A lane's 16 bytes are one load, a warp's 512 bytes are consecutive, every row starts on a 16-byte boundary by
construction. K is padded to 64 and N to 16 with zero scales. Groups of 64 or 128 repeat their scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sits.kernels.cuda.nibbles import SHIFTS, squeeze_nibbles


@dataclass(frozen=True)
class PackedInt4:
    """INT4 weight in the runtime layout; ``rows`` and ``columns`` are the unpadded N and K."""

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None  # None: w = (q - 8) * s, else w = q * s + m
    rows: int
    columns: int
    dtype: torch.dtype  # of the activations it will meet
    multiplier: float = 1.0  # of scales and minimums: a power of two that keeps them in fp16's range
    interleaved: bool = False  # rows are gate and up in eights (``interleave_gate_up``)

    def tensors(self) -> list[torch.Tensor]:
        """For the memory count."""
        return [tensor for tensor in (self.codes, self.scales, self.minimums) if tensor is not None]

    @property
    def nbytes(self) -> int:
        """Bytes read per use."""
        return sum(tensor.nbytes for tensor in self.tensors())


def _blocked(values: torch.Tensor, per_chunk: int, fill: float) -> torch.Tensor:
    """[N, columns] -> [tiles, 2, 8, chunks, per_chunk], padded with ``fill``."""
    rows, columns = values.shape
    padded_rows, padded_columns = -(-rows // 16) * 16, -(-columns // per_chunk) * per_chunk
    if (padded_rows, padded_columns) != (rows, columns):
        values = torch.nn.functional.pad(values, (0, padded_columns - columns, 0, padded_rows - rows), value=fill)
    return values.view(padded_rows // 16, 2, 8, padded_columns // per_chunk, per_chunk)


def pack_int4(
    q: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None,
    group_size: int,
    dtype: torch.dtype,
    interleaved: bool = False,
) -> PackedInt4:
    """q[N, K] uint8 codes, scale and minimum [N, ceil(K / group)] with w = q * scale + minimum -> runtime layout.

    ``minimum=None`` means symmetric (w = (q - 8) * scale). ``interleaved`` takes rows of gate and up one after the
    other and lays them in eights. Raises ``ValueError`` for a group size or shape the layout cannot hold.
    """
    rows, columns = q.shape
    if group_size % 32 or columns % 8 or (interleaved and rows % 16):
        raise ValueError(f"[{rows}, {columns}] in groups of {group_size}: groups must be of 32s, K of 8s")
    if interleaved:
        q, scale = (interleave_gate_up(*tensor.chunk(2)) for tensor in (q, scale))
        minimum = None if minimum is None else interleave_gate_up(*minimum.chunk(2))
    words = []
    for start in range(0, -(-rows // 16) * 16, 16384):  # pieces: the reordered codes are twice the words
        eights = _blocked(q[start : start + 16384], 64, 8).view(torch.int64)  # tile h g chunk (i t): 8 k in each
        tiles, _, _, chunks, _ = eights.shape
        ordered = eights.view(tiles, 2, 8, chunks, 2, 4).permute(0, 3, 2, 5, 4, 1)  # tile chunk g t i h
        words.append(squeeze_nibbles(ordered.contiguous()).view(tiles, chunks, 32, 4))
    repeat = group_size // 32

    def spread(values: torch.Tensor) -> torch.Tensor:
        groups = -(-columns // 32)
        values = values.float().repeat_interleave(repeat, 1)[:, :groups] if repeat > 1 else values.float()
        blocked = _blocked(values, 2, 0.0)
        ordered = blocked.permute(0, 3, 2, 4, 1).reshape(blocked.shape[0], blocked.shape[3], 8, 4)
        return (ordered / multiplier).half().contiguous()

    multiplier = _multiplier(scale, minimum)
    low = None if minimum is None else spread(minimum)
    return PackedInt4(torch.cat(words), spread(scale), low, rows, columns, dtype, multiplier, interleaved)


def _multiplier(scale: torch.Tensor, minimum: torch.Tensor | None) -> float:
    """1 where fp16 holds every value as it is, else a power of two that brings the largest one near 1."""
    values = [scale.float()] if minimum is None else [scale.float(), minimum.float()]
    if all(torch.equal(value.half().float().nan_to_num(), value.nan_to_num()) for value in values):
        return 1.0
    largest = max(float(value.abs().nan_to_num(0.0, 0.0, 0.0).max()) for value in values)
    return 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 1.0


def unpack_codes(packed: PackedInt4, group_size: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse of ``pack_int4``: q[N, K] uint8, scale and minimum [N, ceil(K / group)] float32, rows in order."""
    shift = torch.tensor(SHIFTS, device=packed.codes.device, dtype=torch.int32)
    tiles, chunks = packed.codes.shape[:2]
    pieces = []
    for start in range(0, tiles, 256):
        words = packed.codes[start : start + 256]
        codes = (words.unsqueeze(-1) >> shift & 15).to(torch.uint8).view(-1, chunks, 8, 4, 2, 2, 8)
        pieces.append(codes.permute(0, 5, 2, 1, 4, 3, 6).reshape(-1, chunks * 64))

    def ordered(values: torch.Tensor) -> torch.Tensor:
        values = values[: packed.rows]
        if packed.interleaved:
            values = values.view(-1, 2, 8, values.shape[1]).transpose(0, 1).reshape(packed.rows, -1)
        return values.contiguous()

    def gathered(values: torch.Tensor) -> torch.Tensor:
        rows = values.float().view(tiles, chunks, 8, 2, 2).permute(0, 4, 2, 1, 3).reshape(tiles * 16, -1)
        return ordered(rows[:, : -(-packed.columns // 32)][:, :: group_size // 32]) * packed.multiplier

    scale = gathered(packed.scales)
    minimum = -8.0 * scale if packed.minimums is None else gathered(packed.minimums)
    return ordered(torch.cat(pieces)[:, : packed.columns]), scale, minimum


def unpack_int4(packed: PackedInt4) -> torch.Tensor:
    """The dense float32 weight [N, K] of a packed one, rows in order: the meaning of the layout."""
    q, scale, minimum = unpack_codes(packed)
    scale, minimum = (values.repeat_interleave(32, 1)[:, : packed.columns] for values in (scale, minimum))
    return q.float() * scale + minimum


def interleave_gate_up(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate[I, ...] and up[I, ...] in the order SILU_MUL needs: 8 of gate, 8 of up, and so on. I % 8 == 0."""
    if gate.shape != up.shape or gate.shape[0] % 8:
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} must be equal with rows in eights")
    tail = gate.shape[1:]
    return torch.stack((gate.view(-1, 8, *tail), up.view(-1, 8, *tail)), 1).reshape(-1, *tail)
