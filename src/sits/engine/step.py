"""A step's decision as tensors: one packed host buffer, one copy to the device, views of it for the kernels.

Layout of the buffer (T tokens, R rows, L rows that sample, M blocks per row):
int64 token_ids[T], positions[T], slots[T], logits_rows[L]; int32 query_start[R + 1], context_lens[R], tables[R, M].
A token id of -1 - i stands for token i of the step before (``previous_tokens``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sits.engine.request import Request
from sits.engine.step_batch import StepBatch
from sits.kernels.attention_batch import AttentionBatch


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a packed step."""

    tokens: int
    rows: int
    samples: int
    blocks: int

    @property
    def long_items(self) -> int:
        """int64 entries, which come first."""
        return 3 * self.tokens + self.samples

    @property
    def int_items(self) -> int:
        """int32 entries."""
        return 2 * self.rows + 1 + self.rows * self.blocks

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return 8 * self.long_items + 4 * self.int_items


@dataclass(slots=True)
class StepTensors:
    """What a model's ``forward`` takes, apart from the cache."""

    token_ids: torch.Tensor  # [T] int64
    batch: AttentionBatch
    logits_rows: torch.Tensor  # [L] int64


def view_step(buffer: torch.Tensor, shape: StepShape, block_size: int, num_decodes: int) -> StepTensors:
    """Views of a packed uint8 buffer on any device; host lists are left empty."""
    longs = buffer[: 8 * shape.long_items].view(torch.int64)
    ints = buffer[8 * shape.long_items : shape.nbytes].view(torch.int32)
    token_ids, positions, slots, logits_rows = longs.split((shape.tokens, shape.tokens, shape.tokens, shape.samples))
    query_start, context_lens, tables = ints.split((shape.rows + 1, shape.rows, shape.rows * shape.blocks))
    batch = AttentionBatch(
        positions=positions,
        slots=slots,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=tables.view(shape.rows, shape.blocks),
        block_size=block_size,
        num_decodes=num_decodes,
    )
    return StepTensors(token_ids, batch, logits_rows)


class _HostBuffer:
    """Memory a step is packed into; ``copied`` is the event after which it may be written again."""

    def __init__(self) -> None:
        self.tensor = torch.empty(0, dtype=torch.uint8)
        self.array = np.empty(0, dtype=np.uint8)
        self.copied: torch.cuda.Event | None = None


class StepBuilder:
    """Packs steps into two host buffers in turns, so that one can be packed while the other is being copied."""

    def __init__(self, block_size: int, max_rows: int, max_blocks: int, *, pin_memory: bool = False):
        self.block_size = block_size
        self._pin_memory = pin_memory
        self._tables = np.zeros((max_rows, max_blocks), dtype=np.int32)
        # The block list each row was filled from, and how much of it: lists only grow while a request runs.
        self._filled: list[tuple[list[int], int] | None] = [None] * max_rows
        self._buffers = (_HostBuffer(), _HostBuffer())
        self._packed = 0

    def widest(self, batch: StepBatch) -> int:
        """Blocks of the request that has most."""
        return max(len(request.blocks) for request in batch.requests)

    def pack(self, batch: StepBatch, shape: StepShape) -> torch.Tensor:
        """The packed step [shape.nbytes] uint8 on the host.

        ``shape`` may have more rows and tokens than the batch (then all rows are decodes): the padding writes
        nothing (slot -1) and reads one token of the scratch block 0.
        """
        buffer = self._buffer(shape.nbytes)
        longs = buffer.array[: 8 * shape.long_items].view(np.int64)
        ints = buffer.array[8 * shape.long_items : shape.nbytes].view(np.int32)
        requests, size = batch.requests, self.block_size
        rows, tokens = len(requests), batch.num_tokens
        table_rows = self._fill_tables(requests)
        starts = np.array(batch.starts, dtype=np.int64)
        counts = np.array(batch.counts, dtype=np.int64)
        query_start = ints[: shape.rows + 1]
        query_start[0] = 0
        np.cumsum(counts, out=query_start[1 : rows + 1])
        ints[shape.rows + 1 : shape.rows + 1 + rows] = starts + counts
        ints[2 * shape.rows + 1 :].reshape(shape.rows, shape.blocks)[:rows] = self._tables[table_rows, : shape.blocks]

        decodes = batch.num_decodes
        longs[:decodes] = batch.decode_ids
        if decodes < rows:
            ids: list[int] = []
            for request, start, count in zip(requests[decodes:], batch.starts[decodes:], batch.counts[decodes:]):
                ids += request.token_ids[start : start + count]
            longs[decodes:tokens] = ids
        if tokens == rows:
            positions, owners = starts, table_rows
        else:
            positions = np.arange(tokens) + np.repeat(starts - query_start[:rows], counts)
            owners = np.repeat(table_rows, counts)
        longs[shape.tokens : shape.tokens + tokens] = positions
        slots = longs[2 * shape.tokens : 3 * shape.tokens]
        slots[:tokens] = self._tables[owners, positions // size].astype(np.int64) * size + positions % size
        logits_rows = longs[3 * shape.tokens :]
        if tokens == rows == len(batch.sample_rows):
            logits_rows[:rows] = query_start[:rows]
        else:
            logits_rows[: len(batch.sample_rows)] = query_start[1:][batch.sample_rows] - 1
        if shape.rows > rows:
            self._pad(shape, longs, ints, rows)
        return buffer.tensor[: shape.nbytes]

    def hold_until(self, event: torch.cuda.Event) -> None:
        """The copy of the last packed step is over when ``event`` has happened."""
        self._buffers[self._packed].copied = event

    def _pad(self, shape: StepShape, longs: np.ndarray, ints: np.ndarray, rows: int) -> None:
        tokens = shape.tokens
        longs[rows:tokens] = 0
        longs[tokens + rows : 2 * tokens] = 0
        longs[2 * tokens + rows : 3 * tokens] = -1
        longs[3 * tokens + rows :] = 0
        ints[rows + 1 : shape.rows + 1] = np.arange(rows + 1, shape.rows + 1)
        ints[shape.rows + 1 + rows : 2 * shape.rows + 1] = 1
        ints[2 * shape.rows + 1 :].reshape(shape.rows, shape.blocks)[rows:] = 0

    def _fill_tables(self, requests: list[Request]) -> np.ndarray:
        """The table row of each request, after its new blocks were written there."""
        rows, filled = [], self._filled
        for request in requests:
            row, blocks = request.row, request.blocks
            rows.append(row)
            known = filled[row]
            if known is None or known[0] is not blocks:
                count = 0
            elif known[1] == len(blocks):
                continue
            else:
                count = known[1]
            self._tables[row, count : len(blocks)] = blocks[count:]
            filled[row] = (blocks, len(blocks))
        return np.array(rows, dtype=np.int64)

    def _buffer(self, nbytes: int) -> _HostBuffer:
        self._packed = 1 - self._packed
        buffer = self._buffers[self._packed]
        if buffer.copied is not None:  # long ago, unless a caller hands over steps without taking in results
            buffer.copied.synchronize()
            buffer.copied = None
        if nbytes > buffer.array.nbytes:
            buffer.tensor = torch.empty(max(nbytes * 2, 1 << 16), dtype=torch.uint8, pin_memory=self._pin_memory)
            buffer.array = buffer.tensor.numpy()
        return buffer
