"""How ``wgmma_linear.cu`` cuts a product into tiles, stages and CTAs, and the rule that picks a launch shape."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from sits.kernels.cuda.wgmma_layout import block_bytes

MAX_NORM_ROWS = 512  # rows whose norms fit into what ``shared_bytes`` sets aside for them
SHARED_TOTAL = 228 * 1024  # of a multiprocessor; a CTA takes 1 KiB more than it asks for


@dataclass(frozen=True)
class WgmmaShape:
    """A launch shape.

    A tile is ``64 * row_groups`` weight rows by ``columns`` batch rows; ``k_groups`` warpgroups and ``k_split`` CTAs
    of a cluster split K; a stage holds ``chunks`` chunks of 64 k; ``blocks`` CTAs share a multiprocessor; ``late``
    gives a stage back when the next one has begun; ``e4m3`` multiplies in 8 bits (``chunks`` are even then).
    """

    columns: int
    row_groups: int
    k_groups: int
    k_split: int
    chunks: int
    stages: int
    blocks: int = 1
    late: bool = False
    e4m3: bool = False

    @property
    def groups(self) -> int:
        """Consumer warpgroups of a CTA."""
        return self.row_groups * self.k_groups

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of a thread of the consumers and of the producers, where the sums need more than an equal share."""
        return (232, 40) if self.columns >= 128 else None

    @property
    def threads(self) -> int:
        """Of a CTA: consumers, two producer warps (a warpgroup where registers move)."""
        return self.groups * 128 + (128 if self.registers else 64)

    def shared_bytes(self, symmetric: bool) -> int:
        """Dynamic shared memory of a CTA."""
        own = -(-self.columns // 8 // self.k_split)
        staging, local = own * 8 * 144, (self.k_groups - 1) * 64 * self.columns * 4
        remote = (self.k_split - 1) * 64 * own * 8 * 4
        exchange = max(local, staging) + remote if self.k_groups > 1 else max(remote, staging)
        x_bytes = self.columns * (64 if self.e4m3 else 128)
        stage = self.chunks * (x_bytes + self.row_groups * block_bytes(symmetric)) + 16
        return 1024 + self.stages * stage + self.row_groups * (exchange + 16) + MAX_NORM_ROWS * 4


TILES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# (row groups, K groups, K split) and what a tile costs more than its share of the weights, as measured on one H200
# (docs/notes/tuning.md), for up to 8 rows, up to 16 and more: only above 16 does sharing x between row groups pay.
Splits = tuple[tuple[tuple[int, int, int], float], ...]
SMALLEST_SPLITS: Splits = (((1, 4, 1), 1.0), ((1, 3, 1), 1.04), ((1, 4, 2), 1.0))
SMALL_SPLITS: Splits = (((1, 4, 1), 1.0), ((1, 3, 1), 1.0), ((1, 4, 2), 1.0))
LARGE_SPLITS: Splits = (((2, 2, 2), 1.0), ((2, 2, 1), 0.9), ((1, 4, 2), 1.45), ((1, 4, 1), 1.3))
# How long a product of up to 16 rows takes, in microseconds: a CTA reads a row tile at 930 k a microsecond
# (its share of the read peak); then the CTAs of a cluster add up their sums (SMALL_CLUSTER, once), and the warpgroups
# of a CTA theirs (SMALL_GROUP each). A last round with few tiles left has the bandwidth to itself, but for latency:
# it takes at least LEAST_ROUND of a full one.
SMALL_TILE, SMALL_CLUSTER, SMALL_GROUP, LEAST_ROUND = 1 / 930, 1.7, 0.3, 0.65


@functools.cache
def default_shape(
    batch: int, rows: int, columns: int, symmetric: bool = True, multiprocessors: int = 132, e4m3: bool = False
) -> WgmmaShape:
    """Shape by rule: the split of the work that keeps most multiprocessors busy in its last round.

    A round is a tile on each of them; its cost is the share of a row tile's K that a CTA does, times its row tiles.
    """
    tile = next((size for size in TILES if batch <= size), 256)
    best: tuple[float, WgmmaShape] | None = None
    splits = SMALLEST_SPLITS if tile == 8 else SMALL_SPLITS if tile == 16 else LARGE_SPLITS
    for (row_groups, k_groups, k_split), factor in splits:
        k_groups = k_groups if tile <= 64 else k_groups // 2
        if tile > 128 and row_groups == 1:
            continue  # x would come in faster than a multiprocessor can take it
        options = (tile, 128) if tile == 256 and k_split == 2 else (tile,)  # half a tile where rounds fit better
        for tile_columns in options:
            units = -(-square_parts(rows) // row_groups) * -(-batch // tile_columns)
            rounds = units / (multiprocessors // k_split)
            whole = tile_columns == tile
            if tile <= 16:
                rounds = int(rounds) + max(rounds % 1, LEAST_ROUND if rounds % 1 else 0.0)
                cost = rounds * row_groups / k_split * factor * columns * SMALL_TILE
                cost += SMALL_GROUP * k_groups + (SMALL_CLUSTER if k_split > 1 else 0.0)
            else:
                cost = (
                    math.ceil(rounds) * row_groups / k_split * factor * tile_columns / tile * (1.0 if whole else 1.1)
                )
            if best is None or cost < best[0] - 1e-9:
                chunks = 4 if tile_columns <= 32 else 2 if e4m3 or (tile_columns <= 128 and whole) else 1
                late = chunks > 1 and tile_columns > 16
                best = (
                    cost,
                    fill_stages(tile_columns, row_groups, k_groups, k_split, chunks, symmetric, late=late, e4m3=e4m3),
                )
    assert best is not None
    return best[1]


def fill_stages(
    columns: int,
    row_groups: int,
    k_groups: int,
    k_split: int,
    chunks: int,
    symmetric: bool = True,
    blocks: int = 1,
    late: bool = False,
    e4m3: bool = False,
) -> WgmmaShape:
    """The shape with as many stages as shared memory holds (at most 48).

    Raises ``ValueError`` where those are fewer than the warpgroups need to take turns.
    """
    limit = SHARED_TOTAL // blocks - 1024
    fewest = max(2, k_groups + (late or chunks == 1))  # as in wgmma_linear.cu
    for count in range(48, fewest - 1, -1):
        shape = WgmmaShape(columns, row_groups, k_groups, k_split, chunks, count, blocks, late, e4m3)
        if shape.shared_bytes(symmetric) <= limit:
            return shape
    raise ValueError(f"{shape}: {shape.shared_bytes(symmetric)} bytes of shared memory, and there are {limit}")


def square_parts(rows: int) -> int:
    """Row tiles of a weight: the second size of ``squares_out``."""
    return -(-rows // 64)
