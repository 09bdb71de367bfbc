"""The order INT4 weights lie in for ``wgmma_linear.cu``: made at load, never stored in a checkpoint.

Blocks ``[row tiles of 64, chunks of 64 k]``: 2048 bytes of codes, 256 of scales and, for asymmetric weights,
256 of minimums.

- codes ``[128 threads, 4]`` int32: thread ``32 w + 4 g + t`` holds those of rows ``16 w + g`` and ``16 w + g + 8``.
  Word ``i`` is the A fragment of k = ``16 i .. 16 i + 15``: nibbles 0 and 4 are row g, k ``2 t, 2 t + 1``; 1 and 5
  row g + 8 at the same k; 2 and 6, 3 and 7 the same eight k further on.
- scales and minimums ``[4 w, 8 g, 2 rows, 2 groups]`` in the type of the activations, divided by a power of two of
  their row (``row_factor``). The kernel reads a nibble as the subnormal q 2^-24 (fp16, rows g; q 2^-133 in bf16) or
  q 2^-20 (rows g + 8; q 2^-129), so scales are stored times the inverse: every row is brought to the largest
  magnitude that the type holds so.

N is padded to 64 and the chunks to a multiple of 4 with zero scales. Groups of 64 or 128 repeat their scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sits.kernels.cuda.nibbles import SHIFTS, squeeze_nibbles

CODE_BYTES = 2048
SCALE_BYTES = 256


def block_bytes(symmetric: bool) -> int:
    """Of a block: codes and scales, and the minimums of weights that are not symmetric."""
    return CODE_BYTES + SCALE_BYTES * (1 if symmetric else 2)


@dataclass(frozen=True)
class WgmmaInt4:
    """INT4 weight in blocks; ``rows`` and ``columns`` are the unpadded N and K."""

    blocks: torch.Tensor  # uint8 [row tiles, chunks, 2304 or 2560]
    row_factor: torch.Tensor  # float32 [row tiles * 64], rows in the order of the blocks
    rows: int
    columns: int
    dtype: torch.dtype  # of the activations, and of scales and minimums
    symmetric: bool
    interleaved: bool = False  # rows are gate and up in eights
    _ordered: list[torch.Tensor] = field(default_factory=list, compare=False)

    def factors_in_order(self) -> torch.Tensor:
        """``row_factor`` [N] in the order of the matrix's rows; made once."""
        if not self._ordered:
            self._ordered.append(self._in_order(self.row_factor))
        return self._ordered[0]

    def _in_order(self, values: torch.Tensor) -> torch.Tensor:
        values = values[: self.rows]
        if self.interleaved:
            values = values.view(-1, 2, 8, *values.shape[1:]).transpose(0, 1).reshape(self.rows, *values.shape[1:])
        return values.contiguous()

    def tensors(self) -> list[torch.Tensor]:
        """For the memory count."""
        return [self.blocks, self.row_factor]

    @property
    def nbytes(self) -> int:
        """Bytes read per use."""
        return self.blocks.nbytes


def can_pack(rows: int, columns: int, group_size: int) -> bool:
    """Whether the layout and its kernel take such a weight (whole chunks of x, 16-byte pieces of y)."""
    return rows % 8 == 0 and columns % 64 == 0 and group_size % 32 == 0


def pack(
    q: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None,
    group_size: int,
    dtype: torch.dtype,
    interleaved: bool = False,
) -> WgmmaInt4:
    """q[N, K] uint8 codes, scale and minimum [N, ceil(K / group)] with w = q * scale + minimum -> blocks.

    ``minimum=None`` means symmetric (w = (q - 8) * scale). ``interleaved`` takes rows of gate and up one after the
    other and lays them in eights. Raises ``ValueError`` for a shape the layout cannot hold.
    """
    rows, columns = q.shape
    if not can_pack(rows, columns, group_size) or (interleaved and rows % 16):
        raise ValueError(f"[{rows}, {columns}] in groups of {group_size}: groups must be of 32s, N of 8s, K of 64s")
    if interleaved:
        q, scale = (interleave_gate_up(*tensor.chunk(2)) for tensor in (q, scale))
        minimum = None if minimum is None else interleave_gate_up(*minimum.chunk(2))
    factor = _row_factor(scale, minimum)
    tiles, chunks = -(-rows // 64), -(-columns // 256) * 4
    size = block_bytes(minimum is None)
    blocks = torch.empty(tiles, chunks, size, dtype=torch.uint8, device=q.device)
    step = 256  # row tiles at a time: the reordered codes are twice the words
    for first in range(0, tiles, step):
        part = slice(first, first + step)
        inside = slice(first * 64, (first + step) * 64)
        blocks[part, :, :CODE_BYTES] = _codes(q[inside], chunks)
        row = factor[inside, None]
        scales = _shifted(scale[inside].float() / row, dtype, 1)
        blocks[part, :, CODE_BYTES : CODE_BYTES + SCALE_BYTES] = _groups(scales, chunks, group_size, dtype)
        if minimum is not None:
            blocks[part, :, CODE_BYTES + SCALE_BYTES :] = _groups(
                minimum[inside].float() / row, chunks, group_size, dtype
            )
    factor = torch.nn.functional.pad(factor, (0, tiles * 64 - rows), value=1.0)
    return WgmmaInt4(blocks, factor, rows, columns, dtype, minimum is None, interleaved)


def _row_factor(scale: torch.Tensor, minimum: torch.Tensor | None) -> torch.Tensor:
    """Powers of two [N] that bring the largest scale (or 1/16 of the largest minimum) of each row into [2^-10, 2^-9).

    Rows of zeros get 1. Divided by it, a symmetric weight is under 2^-6 and an asymmetric one under 2^-4. Rows with a
    value that is not finite get NaN, and are NaN from then on: e4m3 forms saturate, and would make it a number.
    """
    largest = scale.float().abs().amax(1)
    if minimum is not None:
        largest = torch.maximum(largest, minimum.float().abs().amax(1) / 16)
    factor = torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(largest)) + 10), 1.0)
    return torch.where(largest.isfinite(), factor, torch.nan)


def _shifted(scales: torch.Tensor, dtype: torch.dtype, sign: int) -> torch.Tensor:
    """Scales [rows, groups] float32 to (``sign`` 1) or from (-1) the power of two they are stored times."""
    high = torch.arange(scales.shape[0], device=scales.device).unsqueeze(1) % 16 >= 8
    near, far = (24, 20) if dtype == torch.float16 else (133, 129)
    half = sign * 64 if dtype == torch.bfloat16 else 0  # in two steps: float32 does not hold 2^133
    return scales * 2.0**half * torch.where(high, 2.0 ** (sign * far - half), 2.0 ** (sign * near - half))


def _padded(values: torch.Tensor, columns: int) -> torch.Tensor:
    """[N, some] -> [multiple of 64, columns], zeros added."""
    rows = -(-values.shape[0] // 64) * 64
    return torch.nn.functional.pad(values, (0, columns - values.shape[1], 0, rows - values.shape[0]))


def _codes(q: torch.Tensor, chunks: int) -> torch.Tensor:
    padded = q if q.shape[0] % 64 == 0 and q.shape[1] == chunks * 64 else _padded(q, chunks * 64)
    tiles = padded.shape[0] // 64
    # Pairs e move as one. tile, w, high, g, chunk, i, far, t -> tile, chunk, w, g, t, i, then a word: far, high, e
    pairs = padded.view(torch.int16).view(tiles, 4, 2, 8, chunks, 4, 2, 4).permute(0, 4, 1, 3, 7, 5, 6, 2)
    eights = pairs.contiguous().view(tiles, chunks, 512, 4).view(torch.int64)
    return squeeze_nibbles(eights).view(tiles, chunks, 512).view(torch.uint8)


def _groups(values: torch.Tensor, chunks: int, group_size: int, dtype: torch.dtype) -> torch.Tensor:
    per_block = values.repeat_interleave(group_size // 32, 1)[:, : chunks * 2]
    padded = _padded(per_block, chunks * 2)
    tiles = padded.shape[0] // 64
    view = padded.view(tiles, 4, 2, 8, chunks, 2).permute(0, 4, 1, 3, 2, 5)  # tile, chunk, w, g, high, group
    return view.to(dtype).reshape(tiles, chunks, 128).contiguous().view(torch.uint8)


def unpack(weight: WgmmaInt4, group_size: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse of ``pack``: q[N, K] uint8, scale and minimum [N, ceil(K / group)] float32, rows in order."""
    tiles, chunks = weight.blocks.shape[:2]
    shift = torch.tensor(SHIFTS, device=weight.blocks.device, dtype=torch.int32)
    pieces = []
    for first in range(0, tiles, 64):
        words = weight.blocks[first : first + 64, :, :CODE_BYTES].contiguous().view(torch.int32)
        nibbles = (words.view(-1, chunks, 128, 4, 1) >> shift & 15).to(torch.uint8)
        view = nibbles.view(-1, chunks, 4, 8, 4, 4, 2, 2, 2).permute(0, 2, 7, 3, 1, 5, 6, 4, 8)
        pieces.append(view.reshape(-1, chunks * 64))

    def gathered(start: int, shifted: bool) -> torch.Tensor:
        raw = weight.blocks[:, :, start : start + SCALE_BYTES].contiguous().view(weight.dtype).float()
        rows = raw.view(tiles, chunks, 4, 8, 2, 2).permute(0, 2, 4, 3, 1, 5).reshape(tiles * 64, -1)
        rows = (_shifted(rows, weight.dtype, -1) if shifted else rows) * weight.row_factor.unsqueeze(1)
        return weight._in_order(rows[:, : -(-weight.columns // 32)][:, :: group_size // 32])

    scale = gathered(CODE_BYTES, True)
    minimum = -8.0 * scale if weight.symmetric else gathered(CODE_BYTES + SCALE_BYTES, False)
    return weight._in_order(torch.cat(pieces)[:, : weight.columns]), scale, minimum


def e4m3_order(x: torch.Tensor) -> torch.Tensor:
    """[..., K] in the order of k that products in e4m3 read it, K a multiple of 16.

    A lane t of a quad takes four k of each 16: those its word of codes holds, 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
    """
    return x.view(*x.shape[:-1], -1, 2, 4, 2).transpose(-3, -2).reshape(x.shape)


def interleave_gate_up(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate[I, ...] and up[I, ...] as the fused activation needs them: 8 of gate, 8 of up, and so on.

    I must be a multiple of 8.
    """
    if gate.shape != up.shape or gate.shape[0] % 8:
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} must be equal with rows in eights")
    tail = gate.shape[1:]
    return torch.stack((gate.view(-1, 8, *tail), up.view(-1, 8, *tail)), 1).reshape(-1, *tail)
