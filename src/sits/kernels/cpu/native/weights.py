"""Weights in the layout the native linears read, and the rule when to leave a linear to a matrix library."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

GROUP = 32
EXPAND_ELEMENTS = 1 << 23  # a long prompt expands this much of a weight to float32 at a time (32 MiB)
FLOAT32, BFLOAT16, INT4, INT8 = range(4)


class WeightStruct(ctypes.Structure):
    """``weight_t`` of kernels.c."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("minimum", ctypes.c_void_p),
        ("rows", ctypes.c_long),
        ("columns", ctypes.c_long),
        ("kind", ctypes.c_long),
        ("wide_scales", ctypes.c_long),
    )


class NativeWeight:
    """A weight [N, K] the native kernels can read; keeps its tensors alive."""

    def __init__(
        self,
        kind: int,
        rows: int,
        columns: int,
        data: torch.Tensor,
        scale: torch.Tensor | None = None,
        minimum: torch.Tensor | None = None,
    ):
        self.kind, self.rows, self.columns = kind, rows, columns
        self.data, self.scale, self.minimum = data, scale, minimum
        self.struct = WeightStruct(
            data.data_ptr(),
            None if scale is None else scale.data_ptr(),
            None if minimum is None else minimum.data_ptr(),
            rows,
            columns,
            kind,
            int(scale is not None and scale.dtype == torch.float32),
        )
        self.pointer = ctypes.addressof(self.struct)

    def tensors(self) -> list[torch.Tensor]:
        """For the memory count."""
        return [tensor for tensor in (self.data, self.scale, self.minimum) if tensor is not None]


def pack_nibbles(q: torch.Tensor) -> torch.Tensor:
    """codes[N, K] 0..15 -> uint8 [N, K / 2]: byte i of a group of 32 holds code i and, above it, code i + 16."""
    low, high = q.view(q.shape[0], -1, 2, 16).unbind(2)
    return (low | (high << 4)).view(q.shape[0], -1)


def unpack_nibbles(data: torch.Tensor) -> torch.Tensor:
    """Inverse of ``pack_nibbles``."""
    groups = data.view(data.shape[0], -1, 16)
    return torch.stack((groups & 15, groups >> 4), dim=2).view(data.shape[0], -1)


class NativeInt4(NativeWeight):
    """INT4 codes packed for the kernels; gives the codes back (``Int4Weight`` asks for that)."""

    def __init__(self, codes: Any):
        rows, columns = codes.shape
        self._codes_type = type(codes)
        repeat = codes.group_size // GROUP  # larger groups are several of 32 with equal values
        scale, minimum = (
            values.repeat_interleave(repeat, dim=1)[:, : columns // GROUP] for values in (codes.scale, codes.minimum)
        )
        halves = scale.half(), minimum.half()
        exact = torch.equal(halves[0].float(), scale) and torch.equal(halves[1].float(), minimum)
        scale, minimum = halves if exact else (scale.float(), minimum.float())
        super().__init__(
            INT4, rows, columns, pack_nibbles(codes.q).contiguous(), scale.contiguous(), minimum.contiguous()
        )
        self.group_size = codes.group_size

    def to_codes(self) -> Any:
        """The neutral form again, exactly."""
        assert self.scale is not None
        assert self.minimum is not None
        step = self.group_size // GROUP
        scale, minimum = (values.float()[:, ::step].contiguous() for values in (self.scale, self.minimum))
        return self._codes_type(unpack_nibbles(self.data), scale, minimum, self.group_size)
