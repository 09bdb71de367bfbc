"""Quantized Hugging Face checkpoints: which format a config.json declares, and the reader for it.

A reader turns the stored tensors of one linear into ``Int4Codes`` or ``Fp8Codes``; it opens no files. Supported:
compressed-tensors (``pack-quantized`` INT4, ``float-quantized`` FP8), GPTQ (v1 and v2), AWQ (GEMM layout), and
``fp8`` with one scale per tensor or row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch

from sits.errors import InputError
from sits.quant.fp8 import Fp8Codes
from sits.quant.int4 import Int4Codes

WeightCodes = Int4Codes | Fp8Codes
METHODS = ("compressed-tensors", "gptq", "awq", "fp8")


class StoredTensors(Protocol):
    """The tensors of a checkpoint by full name."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str) -> torch.Tensor: ...


class CheckpointFormat(ABC):
    """Reads the linears of one quantized checkpoint. ``module`` is a name such as ``model.layers.0.mlp.up_proj``."""

    name: str

    @abstractmethod
    def is_quantized(self, module: str, tensors: StoredTensors) -> bool:
        """Whether this linear is stored in the format (others are plain ``module.weight``)."""

    @abstractmethod
    def shape(self, module: str, tensors: StoredTensors) -> tuple[int, int]:
        """(N, K) of a quantized linear."""

    @abstractmethod
    def read(self, module: str, tensors: StoredTensors) -> WeightCodes | torch.Tensor:
        """The weight of a quantized linear.

        A float32 matrix when its groups do not run along consecutive inputs (activation order): such a weight has
        no INT4 form that fused layers could share, and is kept dense.
        """


def need(tensors: StoredTensors, name: str) -> torch.Tensor:
    """A tensor, or an ``InputError`` that names it."""
    if not tensors.has(name):
        raise InputError(f"the checkpoint has no tensor {name}", "It is incomplete or of another format")
    return tensors.get(name)


def format_of(quantization_config: dict[str, Any]) -> CheckpointFormat:
    """The reader for the ``quantization_config`` of a config.json. Raises ``InputError`` if it is not supported."""
    from sits.quant.awq import AwqFormat
    from sits.quant.compressed_tensors import CompressedTensorsFormat
    from sits.quant.fp8_checkpoint import Fp8Format
    from sits.quant.gptq import GptqFormat

    method = str(quantization_config.get("quant_method", "")).lower()
    if method == "compressed-tensors":
        return CompressedTensorsFormat(quantization_config)
    if method == "gptq":
        return GptqFormat(quantization_config)
    if method == "awq":
        return AwqFormat(quantization_config)
    if method == "fp8":
        return Fp8Format(quantization_config)
    raise InputError(
        f"quantization method {method or 'without a name'!r} is not supported", f"Supported: {', '.join(METHODS)}"
    )


def four_bits(bits: Any, what: str) -> None:
    """Raise ``InputError`` unless ``bits`` is 4."""
    if bits != 4:
        raise InputError(f"{what} with {bits}-bit integer weights is not supported", "4-bit checkpoints are read")
