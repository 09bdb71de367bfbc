"""Reading GGUF files: metadata, tensor directory, dequantised tensors.

The header is parsed here (the ``gguf`` package's reader needs seconds for a tokenizer of 100k entries, and reads
past the end of a truncated file); block formats are decoded by the ``gguf`` package, whose numbers are the meaning
of each format. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sits.errors import InputError, MissingExtraError

SUPPORTED_TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ROWS_AT_A_TIME = 1 << 22  # elements dequantised in one piece: bounds the temporary float32 copy to 16 MiB


@dataclass(frozen=True)
class GGUFTensor:
    """Directory entry: where a tensor lies and how it is stored. ``shape`` is row-major (as PyTorch has it)."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int  # from the start of the file
    nbytes: int


class _Cursor:
    """Sequential little-endian reads that fail with a clear message at the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.data, self.path, self.at = data, path, 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise InputError(f"{self.path} is truncated: its header ends early", "Download the file again")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SCALARS:
                size = struct.calcsize("<" + _SCALARS[inner])
                return list(struct.unpack(f"<{count}{_SCALARS[inner]}", self.take(size * count)))
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise InputError(f"{self.path} is damaged: unknown metadata type {kind}", "Download the file again")
        return self.number(_SCALARS[kind])


class GGUFFile:
    """An open GGUF file: ``metadata`` (plain Python values) and ``tensors`` by name.

    Raises ``InputError`` when the file is missing, not GGUF, truncated, or stores a tensor in an unknown format.
    """

    def __init__(self, path: str | Path):
        try:
            import gguf
        except ImportError as error:
            raise MissingExtraError("Reading GGUF files", "engine") from error
        self._gguf = gguf
        self.path = Path(path)
        self._data = self._map()
        cursor = _Cursor(self._data, self.path)
        if cursor.take(4) != b"GGUF":
            raise InputError(f"{self.path} is not a GGUF file", "Give a .gguf model file or a Hugging Face folder")
        version = cursor.number("I")
        if version not in (2, 3):
            raise InputError(f"{self.path} is GGUF version {version}", "Versions 2 and 3 (little-endian) are read")
        tensor_count, key_count = cursor.number("Q"), cursor.number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = cursor.text()
            self.metadata[key] = cursor.value(cursor.number("I"))
        self.tensors = self._directory(cursor, tensor_count)

    def _map(self) -> mmap.mmap:
        if not self.path.is_file():
            raise InputError(f"model file {self.path} does not exist", "Check the path")
        try:
            with self.path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: empty file
            raise InputError(f"cannot read {self.path}: {error}", "Download the file again") from error

    def _directory(self, cursor: _Cursor, count: int) -> dict[str, GGUFTensor]:
        entries = []
        for _ in range(count):
            name = cursor.text()
            dimensions = [cursor.number("Q") for _ in range(cursor.number("I"))]
            kind, offset = cursor.number("I"), cursor.number("Q")
            entries.append((name, tuple(reversed(dimensions)), kind, offset))
        alignment = int(self.metadata.get("general.alignment", 32))
        start = -(-cursor.at // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in entries:
            type_name, nbytes = self._size(name, shape, kind)
            if start + offset + nbytes > len(self._data):
                raise InputError(
                    f"{self.path} is truncated: {len(self._data)} bytes, but tensor {name} ends at byte "
                    f"{start + offset + nbytes}",
                    "Download the file again",
                )
            tensors[name] = GGUFTensor(name, shape, type_name, start + offset, nbytes)
        return tensors

    def _size(self, name: str, shape: tuple[int, ...], kind: int) -> tuple[str, int]:
        try:
            quantization = self._gguf.GGMLQuantizationType(kind)
        except ValueError as error:
            raise InputError(f"{self.path}: tensor {name} has unknown type {kind}") from error
        if quantization.name not in SUPPORTED_TYPES:
            raise InputError(
                f"{self.path}: tensor {name} is stored as {quantization.name}, which is not supported",
                f"Supported: {', '.join(SUPPORTED_TYPES)}",
            )
        block, block_bytes = self._gguf.GGML_QUANT_SIZES[quantization]
        if shape and shape[-1] % block:
            raise InputError(f"{self.path} is damaged: rows of {name} do not hold whole {quantization.name} blocks")
        return quantization.name, math.prod(shape) // block * block_bytes

    def raw(self, name: str) -> np.ndarray[Any, Any]:
        """The stored bytes of a tensor, uint8 [rows, bytes per row] (a view of the file, not a copy)."""
        tensor = self.tensors[name]
        rows = math.prod(tensor.shape[:-1])
        flat = np.frombuffer(self._data, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
        return flat.reshape(rows, -1)

    def dequantize(self, name: str, first: int = 0, count: int | None = None) -> np.ndarray[Any, Any]:
        """float32 [count, columns]: rows ``first`` ... of a tensor, decoded by the ``gguf`` package."""
        kind = self._gguf.GGMLQuantizationType[self.tensors[name].type_name]
        rows = self.raw(name)[first : None if count is None else first + count]
        if kind == self._gguf.GGMLQuantizationType.F32:
            return rows.view(np.float32)
        return self._gguf.quants.dequantize(rows, kind)

    def row_blocks(self, name: str) -> list[tuple[int, int]]:
        """(first, count) pieces of a tensor that keep the temporary of ``dequantize`` small."""
        shape = self.tensors[name].shape
        rows, columns = math.prod(shape[:-1]), shape[-1]
        step = max(1, _ROWS_AT_A_TIME // columns)
        return [(first, min(step, rows - first)) for first in range(0, rows, step)]
