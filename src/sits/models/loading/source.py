"""Where weights come from: one small interface over safetensors, GGUF and synthetic weights.

Tensors are named as Hugging Face names them (``model.layers.0.self_attn.q_proj.weight``), whatever the file says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from sits.errors import InputError
from sits.quant.formats import WeightCodes


class WeightSource(ABC):
    """Tensors by name, read one at a time straight into their destination."""

    name: str  # what to call it in messages: a path or a preset

    @abstractmethod
    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Shape of a tensor, or None when the source does not have it."""

    @abstractmethod
    def read_into(self, tensor: str, out: torch.Tensor) -> None:
        """Copy a tensor into ``out`` (same shape, any float dtype, any device)."""

    @abstractmethod
    def weight_hash(self) -> dict[str, str]:
        """How the card identifies these weights: ``sha256``, or ``fingerprint`` for files too large to hash."""

    def stored_codes(self, tensor: str, device: torch.device | str = "cpu") -> WeightCodes | None:
        """The tensor in its own quantised form (no loss) when it is stored as INT4 or FP8, else None.

        The packed bytes go to ``device`` and are unpacked there.
        """
        return None

    def has(self, tensor: str) -> bool:
        """Whether the source holds the tensor."""
        return self.shape(tensor) is not None

    def read_checked(self, tensor: str, out: torch.Tensor) -> None:
        """``read_into`` after checking presence and shape; ``InputError`` names what is wrong."""
        shape = self.shape(tensor)
        if shape is None:
            raise InputError(f"{self.name} has no tensor {tensor}", "The checkpoint is incomplete: fetch it again")
        if tuple(shape) != tuple(out.shape):
            raise InputError(
                f"{self.name}: tensor {tensor} has shape {tuple(shape)}, the config asks for {tuple(out.shape)}",
                "config and weights do not belong together",
            )
        self.read_into(tensor, out)
