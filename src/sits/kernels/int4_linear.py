"""``linear_int4`` on CUDA: several kernels hold the weight in their own order, the measured table picks one a batch.

Kernels: ``wgmma`` (Hopper, up to some hundred rows), ``dense`` (that layout made dense in a scratch, then cuBLAS:
prompts), ``humming`` (package ``humming-kernels``: other NVIDIA cards, or ``SITS_KERNELS=linear_int4=humming``),
``triton`` (portable, and for shapes that no other takes).
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
        if "wgmma" in self.layouts:
            parts = _own().unpack(self.layouts["wgmma"], self.group_size)
        else:
            parts = portable.unpack_rows(self.layouts["triton"])
        return self.codes_type(*parts, self.group_size)

    def usable(self, dtype: torch.dtype) -> set[str]:
        """Kernels that can multiply this weight by rows of ``dtype`` without another copy of it."""
        own = "wgmma" in self.layouts and self.layouts["wgmma"].dtype == dtype
        names = {"wgmma", "dense"} if own else {"triton"}
        if "triton" in self.layouts:
            names.add("triton")
        if f"humming-{dtype}" in self.layouts or (not own and self._humming_fits(dtype)):
            names.add("humming")
        return (names - self.refused) or {"triton"}

    def _humming_fits(self, dtype: torch.dtype) -> bool:
        return dtype in HALF and humming.available() and humming.can_pack(*self.shape[::-1], self.group_size)

    def layout(self, name: str, dtype: torch.dtype) -> Any:
        """The weight in a kernel's order, made now if it has to be; None when this kernel cannot hold it."""
        key = _key(name, dtype)
        if key not in self.layouts and name not in self.refused:
            made = layouts_for(name, self.to_codes(), dtype, self.gate_up)
            if not made:
                self.refused.add(name)
            self.layouts |= made
        return self.layouts.get(key)


def _key(name: str, dtype: torch.dtype) -> str:
    """Where ``PackedForCuda.layouts`` keeps what a kernel reads; Humming has a layout for each type of rows."""
    return {"humming": f"humming-{dtype}", "dense": "wgmma"}.get(name, name)


def layouts_for(name: str, codes: Any, dtype: torch.dtype, gate_up: bool = False) -> dict[str, Any]:
    """``codes`` as kernel ``name`` reads them, for ``PackedForCuda.layouts``; empty when they cannot be held so."""
    layout = make_layout(name, codes, dtype, gate_up)
    return {} if layout is None else {_key(name, dtype): layout}


def make_layout(name: str, codes: Any, dtype: torch.dtype, gate_up: bool = False) -> Any:
    """``codes`` (an ``Int4Codes``) in the order of one kernel, or None when it has no form for them."""
    symmetric = codes.is_symmetric()
    if name in ("wgmma", "dense"):
        own = _own()
        if own is None or dtype not in HALF or not own.can_pack(*codes.shape, codes.group_size):
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
    """Replace ``weight.codes`` by the layout that this card and the place in the model call for."""
    codes = weight.codes
    if codes is None:
        return
    gate_up, dtype = weight.role == "gate_up_proj", weight.activation_dtype or torch.bfloat16
    layouts = layouts_for("wgmma", codes, dtype, gate_up) or layouts_for("triton", codes, dtype, gate_up)
    packed = PackedForCuda(layouts, type(codes), codes.shape, codes.group_size, gate_up)
    weight.packed, weight.codes = packed, None


def multiply(name: str, x: torch.Tensor, packed: PackedForCuda, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] -> [M, N] with one named kernel; the portable one where that kernel cannot hold the weight."""
    layout = packed.layout(name, x.dtype)
    if layout is None:
        return portable.int4_linear(x, packed.layout("triton", x.dtype), bias)
    if name == "humming":
        return humming.linear(x, layout, bias)
    if name == "wgmma":
        return _own().linear(x, layout, bias)
    if name == "dense":
        return _own().dense_linear(x, layout, bias)
    return portable.int4_linear(x, layout, bias)


def pick(packed: PackedForCuda, rows: int, dtype: torch.dtype) -> str:
    """The kernel for ``rows`` rows: the table's, else the first in order that is usable."""
    name = packed.chosen.get((rows, dtype))
    if name is None:
        usable = packed.usable(dtype)
        default = next(key for key in ("wgmma", "humming", "dense", "triton") if key in usable)
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
        fits = name in weight.packed.usable(x.dtype) or name in ("humming", "triton")
        return multiply(name if fits else pick(weight.packed, x.shape[0], x.dtype), x, weight.packed, bias)


for _name, _priority in (("triton", 10), ("humming", 5), ("wgmma", 5), ("dense", 3)):
    _register_single(_name, _priority)
