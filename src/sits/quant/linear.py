"""Weights of linear layers as objects: the model multiplies by them without knowing their storage format.

A format is a subclass that names its operator (``linear_dense``, ``linear_int4``, ``linear_fp8``); the registry
chooses the kernel for the device, and the kernel's ``prepare`` brings the tensors into the layout it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from sits.kernels.registry import select


class LinearWeight(ABC):
    """The matrix [out_features, in_features] of one linear layer, in some storage format, and its bias.

    Life: made by the loader (``from_dense`` or a format's own constructor), then ``prepack()`` once on the device
    where it will run, then ``apply()`` for ever. Subclasses keep their tensors in attributes that ``tensors``
    returns; a kernel's ``prepare`` may replace them by its own layout (``packed``) and free the originals.
    """

    operator: ClassVar[str]

    def __init__(self, out_features: int, in_features: int, bias: torch.Tensor | None = None):
        self.out_features = out_features
        self.in_features = in_features
        self.bias = bias
        self.role = ""  # which linear of a layer it is (``gate_up_proj``, ...): some kernels lay it out accordingly
        self.activation_dtype: torch.dtype | None = None  # what it will be multiplied with, where known
        self.packed: Any = None  # the chosen kernel's own layout, if it has one
        self.kernel = ""  # name of the chosen implementation
        self._multiply: Callable[[torch.Tensor, Any, torch.Tensor | None], torch.Tensor] | None = None

    @classmethod
    @abstractmethod
    def from_dense(cls, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> LinearWeight:
        """Convert weight[out, in] (a float dtype, on the device where it will run) to this format."""

    @property
    @abstractmethod
    def precision(self) -> str:
        """Name of the format in cards and plans: ``bfloat16``, ``int4-g32``, ``fp8``, ..."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the weight lives."""

    @abstractmethod
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that holds part of the weight, bias included (for the memory count)."""

    @abstractmethod
    def dequantize(self) -> torch.Tensor:
        """The dense matrix [out, in] this format stands for; slow, for checks and conversions."""

    def properties(self) -> dict[str, Any]:
        """What a kernel's ``supports`` may ask about this weight."""
        return {"out_features": self.out_features, "in_features": self.in_features}

    def prepack(self, **properties: Any) -> LinearWeight:
        """Choose the kernel and bring the weight into its layout. Call once; returns itself."""
        entry = select(self.operator, self.device.type, **{**self.properties(), **properties})
        self.kernel, self._multiply = entry.name, entry.function
        if entry.prepare is not None:
            entry.prepare(self)
        return self

    def held(self, layout: str) -> Any:
        """The weight in a layout of ``sits.kernels.int4_linear`` by its name, or ``None`` where it has none."""
        return getattr(self.packed, "layouts", {}).get(layout)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, in_features] -> [T, out_features] in x's dtype."""
        if self._multiply is None:
            self.prepack()
        assert self._multiply is not None
        return self._multiply(x, self, self.bias)

    def memory_bytes(self) -> int:
        """Bytes the weight occupies as it stands (packed layout included)."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())


class DenseWeight(LinearWeight):
    """A weight in FP32, BF16 or FP16. ``weight`` is None once a kernel has packed it."""

    operator = "linear_dense"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, shared: bool = False):
        super().__init__(weight.shape[0], weight.shape[1], bias)
        self.shared = shared  # somebody else reads the tensor too (a tied embedding): packing would not free it
        self.weight: torch.Tensor | None = weight
        self.dtype = weight.dtype
        self._device = weight.device

    @classmethod
    def from_dense(cls, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> DenseWeight:
        return cls(weight, bias)

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        return self._device

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for tensor in (self.weight, self.packed, self.bias) if tensor is not None]

    def dequantize(self) -> torch.Tensor:
        if self.weight is not None:
            return self.weight
        return self.packed.to_dense()[: self.out_features]

    def properties(self) -> dict[str, Any]:
        return {**super().properties(), "dtype": self.dtype}
