"""``linear_int4`` on CUDA: several kernels hold the weight in their own order, the measured table picks one a batch.

Kernels: ``cuda`` (tensor-core GEMV with programmatic dependent launch, small batches, Hopper), ``humming`` (package
``humming-kernels``, everything larger), ``triton`` (portable, any size). A weight is packed for one kernel when it is
loaded; another layout is made when a batch first needs it, so memory never holds a copy that nothing uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from sits.kernels import humming, tuning
from sits.kernels.registry import register
from sits.kernels.triton import int4 as portable

HALF = (torch.float16, torch.bfloat16)


@cache
def _gemv() -> Any:
    """The CUDA C++ module, or None where it cannot run."""
    try:
        from sits.kernels.cuda import int4_gemv

        return int4_gemv if int4_gemv.available() else None
    except ImportError:
        return None


@cache
def _card() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


@dataclass(slots=True)
class PackedForCuda:
    """What ``Int4Weight.packed`` holds: a layout per kernel, the first made at load."""

    layouts: dict[str, Any]
    codes_type: type  # quant.int4.Int4Codes
    shape: tuple[int, int]
    group_size: int
    chosen: dict[tuple[int, torch.dtype], str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # kernels that cannot hold this weight

    def tensors(self) -> list[torch.Tensor]:
        """For the memory count."""
        return [tensor for layout in self.layouts.values() for tensor in layout.tensors()]

    def to_codes(self) -> Any:
        """The neutral form."""
        if "cuda" in self.layouts:
            parts = _gemv().unpack_from_gemv(self.layouts["cuda"])
        else:
            parts = portable.unpack_rows(self.layouts["triton"])
        return self.codes_type(*parts, self.group_size)

    def usable(self, rows: int, dtype: torch.dtype) -> set[str]:
        """Kernels that can multiply this weight by ``rows`` rows of ``dtype``."""
        names = {"triton"}
        if dtype in HALF:
            gemv = _gemv()
            if gemv is not None and rows <= gemv.MAX_ROWS and self.group_size in gemv.GROUP_SIZES:
                names.add("cuda")
            if humming.available() and humming.can_pack(self.shape[1], self.shape[0], self.group_size):
                names.add("humming")
        return names - self.refused

    def layout(self, name: str, dtype: torch.dtype) -> Any:
        """The weight in a kernel's order, made now if it has to be; None when this kernel cannot hold it."""
        key = f"humming-{dtype}" if name == "humming" else name
        if key not in self.layouts and name not in self.refused:
            made = make_layout(name, self.to_codes(), dtype)
            if made is None:
                self.refused.add(name)
                return None
            self.layouts[key] = made
        return self.layouts.get(key)


def make_layout(name: str, codes: Any, dtype: torch.dtype) -> Any:
    """``codes`` (an ``Int4Codes``) in the order of one kernel, or None when it has no form for them."""
    if name == "cuda":
        return _gemv().pack_for_gemv(codes.q, codes.scale, codes.minimum, codes.group_size)
    if name == "humming":
        zero = None if codes.is_symmetric() else codes.zero_points()
        if zero is None and not codes.is_symmetric():
            return None  # a float minimum is not a zero point
        return humming.pack(codes.q, codes.scale, zero, codes.group_size, dtype)
    return portable.pack_rows(codes.q, codes.scale, codes.minimum, codes.group_size)


def prepare(weight: Any, first: str | None = None) -> None:
    """Replace ``weight.codes`` by its first layout: the GEMV's where it runs, else the portable one."""
    codes = weight.codes
    if codes is None:
        return
    gemv = _gemv()
    if first is None:
        first = "cuda" if gemv is not None and codes.group_size in gemv.GROUP_SIZES else "triton"
    layouts = {first: make_layout(first, codes, torch.bfloat16)}
    weight.packed, weight.codes = PackedForCuda(layouts, type(codes), codes.shape, codes.group_size), None


def multiply(name: str, x: torch.Tensor, packed: PackedForCuda, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] -> [M, N] with one named kernel; the portable one where that kernel cannot hold the weight."""
    layout = packed.layout(name, x.dtype)
    if layout is None:
        return portable.int4_linear(x, packed.layout("triton", x.dtype), bias)
    if name == "humming":
        return humming.linear(x, layout, bias)
    if name == "cuda":
        return _gemv().int4_gemv(x, layout, bias)
    return portable.int4_linear(x, layout, bias)


def pick(packed: PackedForCuda, rows: int, dtype: torch.dtype) -> str:
    """The kernel for ``rows`` rows: the table's, else Humming from 17 rows up, the GEMV below."""
    name = packed.chosen.get((rows, dtype))
    if name is None:
        usable = packed.usable(rows, dtype)
        order = ("cuda", "humming", "triton")
        default = next(key for key in order if key in usable)
        name = tuning.choose("linear_int4", _card(), rows, packed.shape, usable, default)
        packed.chosen[rows, dtype] = name
    return name


def supports(group_size: int = 0, **_: Any) -> bool:
    """Groups the layouts can hold."""
    return group_size > 0 and group_size % 32 == 0


@register("linear_int4", "measured", devices=("cuda",), priority=20, supports=supports, prepare=prepare)
def linear_int4(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out] by the fastest kernel for T; see ``sits.kernels.ops``."""
    if x.shape[0] == 0:
        return x.new_empty(0, weight.out_features)
    return multiply(pick(weight.packed, x.shape[0], x.dtype), x, weight.packed, bias)


def _register_single(name: str, priority: int) -> None:
    """One kernel by its own name: the ablation switch (``SITS_KERNELS=linear_int4=humming``)."""

    @register("linear_int4", name, devices=("cuda",), priority=priority, supports=supports, prepare=prepare)
    def linear(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
        chosen = name if name in weight.packed.usable(x.shape[0], x.dtype) else "triton"
        return multiply(chosen, x, weight.packed, bias)


for _name, _priority in (("triton", 10), ("humming", 5), ("cuda", 4)):
    _register_single(_name, _priority)
