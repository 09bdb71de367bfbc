"""``linear_int4`` on CUDA: several kernels hold the weight in their own order, the measured table picks one a batch.

Kernels: ``cuda`` (tensor-core GEMV with programmatic dependent launch, small batches, Hopper), ``dense`` (the same
layout made dense in a scratch, then cuBLAS: prompts), ``humming`` (package ``humming-kernels``, middle batches),
``triton`` (portable). A weight is packed for one kernel when it is loaded. Humming's second copy is made only
for an engine that may decode more rows at once than the GEMV takes, before the KV cache takes the memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from sits.kernels import humming, tuning
from sits.kernels.registry import register
from sits.kernels.triton import int4 as portable
from sits.kernels.triton import int4_fp8

HALF = (torch.float16, torch.bfloat16)


@cache
def _own() -> Any:
    """The CUDA C++ kernels, or None where they cannot run."""
    try:
        from sits.kernels.cuda import int4

        return int4 if int4.is_available() else None
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
    gate_up: bool = False
    chosen: dict[tuple[int, torch.dtype], str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # kernels that cannot hold this weight

    def tensors(self) -> list[torch.Tensor]:
        """For the memory count."""
        return [tensor for layout in self.layouts.values() for tensor in layout.tensors()]

    def to_codes(self) -> Any:
        """The neutral form (scales as the layout keeps them)."""
        if "cuda" in self.layouts:
            parts = _own().unpack_codes(self.layouts["cuda"], self.group_size)
        else:
            parts = portable.unpack_rows(self.layouts["triton"])
        return self.codes_type(*parts, self.group_size)

    def prepare_for_batch(self, rows: int) -> None:
        """Make Humming's copy if steps of up to ``rows`` rows need it. ``SITS_INT4_GEMM=dense`` does without."""
        own = self.layouts.get("cuda")
        if own is None or rows <= _own().MAX_BATCH or os.environ.get("SITS_INT4_GEMM", "humming") != "humming":
            return
        if humming.available() and humming.can_pack(self.shape[1], self.shape[0], self.group_size):
            self.layout("humming", own.dtype)
            self.chosen.clear()

    def usable(self, rows: int, dtype: torch.dtype) -> set[str]:
        """Kernels that can multiply this weight by ``rows`` rows of ``dtype`` without another copy of it."""
        names = {"triton"} if "triton" in self.layouts or "cuda" not in self.layouts else set()
        own = self.layouts.get("cuda")
        if own is not None and dtype == own.dtype:
            names |= {"cuda", "dense"} if rows <= _own().MAX_BATCH else {"dense"}
        if f"humming-{dtype}" in self.layouts or ("cuda" not in self.layouts and self._humming_fits(dtype)):
            names.add("humming")
        return (names or {"triton"}) - self.refused

    def _humming_fits(self, dtype: torch.dtype) -> bool:
        return dtype in HALF and humming.available() and humming.can_pack(*self.shape[::-1], self.group_size)

    def layout(self, name: str, dtype: torch.dtype) -> Any:
        """The weight in a kernel's order, made now if it has to be; None when this kernel cannot hold it."""
        key = {"humming": f"humming-{dtype}", "dense": "cuda"}.get(name, name)
        if key not in self.layouts and name not in self.refused:
            made = make_layout(name, self.to_codes(), dtype, self.gate_up)
            if made is None:
                self.refused.add(name)
                return None
            self.layouts[key] = made
        return self.layouts.get(key)


def make_layout(name: str, codes: Any, dtype: torch.dtype, gate_up: bool = False) -> Any:
    """``codes`` (an ``Int4Codes``) in the order of one kernel, or None when it has no form for them."""
    symmetric = codes.is_symmetric()
    if name in ("cuda", "dense"):
        own = _own()
        if own is None or dtype not in HALF or not own.can_pack(codes.shape[1], codes.group_size):
            return None
        minimum = None if symmetric else codes.minimum
        return own.pack(codes.q, codes.scale, minimum, codes.group_size, dtype, gate_up)
    if name == "humming":
        zero = None if symmetric else codes.zero_points()
        if zero is None and not symmetric:
            return None  # a float minimum is not a zero point
        return humming.pack(codes.q, codes.scale, zero, codes.group_size, dtype)
    return portable.pack_rows(codes.q, codes.scale, codes.minimum, codes.group_size)


def prepare(weight: Any) -> None:
    """Replace ``weight.codes`` by its first layout: the GEMV's where it runs, else the portable one."""
    codes = weight.codes
    if codes is None:
        return
    gate_up, dtype = weight.role == "gate_up_proj", weight.activation_dtype or torch.bfloat16
    first = "cuda"
    layout = make_layout(first, codes, dtype, gate_up)
    if layout is None:
        first = "triton"
        layout = make_layout(first, codes, dtype)
    packed = PackedForCuda({first: layout}, type(codes), codes.shape, codes.group_size, gate_up)
    weight.packed, weight.codes = packed, None


def multiply(name: str, x: torch.Tensor, packed: PackedForCuda, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] -> [M, N] with one named kernel; the portable one where that kernel cannot hold the weight."""
    layout = packed.layout(name, x.dtype)
    if layout is None:
        return portable.int4_linear(x, packed.layout("triton", x.dtype), bias)
    if name == "humming":
        return humming.linear(x, layout, bias)
    if name == "cuda":
        return _own().small_linear(x, layout, bias)
    if name == "dense" and int4_fp8.wanted(x.shape[0], layout):
        return int4_fp8.fp8_linear(x, layout, bias)
    if name == "dense":
        return _own().dense_linear(x, layout, bias)
    return portable.int4_linear(x, layout, bias)


def pick(packed: PackedForCuda, rows: int, dtype: torch.dtype) -> str:
    """The kernel for ``rows`` rows: the table's, else the first in order that is usable."""
    name = packed.chosen.get((rows, dtype))
    if name is None:
        usable = packed.usable(rows, dtype)
        order = ("cuda", "humming", "dense", "triton")
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
        fits = name in weight.packed.usable(x.shape[0], x.dtype) or name in ("humming", "triton")
        return multiply(name if fits else pick(weight.packed, x.shape[0], x.dtype), x, weight.packed, bias)


for _name, _priority in (("triton", 10), ("humming", 5), ("cuda", 4), ("dense", 3)):
    _register_single(_name, _priority)
