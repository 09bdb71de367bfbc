"""A quantised Hugging Face folder (compressed-tensors, GPTQ, AWQ, FP8) as a weight source."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from sits.models.loading.safetensors_source import SafetensorsSource
from sits.quant.formats import WeightCodes, format_of


def read_quantization_config(folder: str | Path) -> dict[str, Any] | None:
    """The ``quantization_config`` of a folder (its config.json, or AutoGPTQ's quantize_config.json), or None."""
    for name, key in (("config.json", "quantization_config"), ("quantize_config.json", None)):
        try:
            data = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found = data.get(key) if key else {"quant_method": "gptq", **data}
        if found:
            return found
    return None


class QuantizedSource(SafetensorsSource):
    """Answers for ``module.weight`` whatever tensors the format stores it in."""

    def __init__(self, folder: str | Path, quantization_config: dict[str, Any]):
        super().__init__(folder)
        self.format = format_of(quantization_config)
        self._stored = _Stored(self)
        self._warned = False

    def _module(self, tensor: str) -> str | None:
        module, _, kind = tensor.rpartition(".")
        return module if kind == "weight" and self.format.is_quantized(module, self._stored) else None

    def names(self) -> list[str]:
        """Names of the dense view: one ``module.weight`` for the several tensors of a quantised linear."""
        names: dict[str, None] = {}
        for stored in super().names():
            module = stored.rpartition(".")[0]
            quantized = self.format.is_quantized(module, self._stored) and not stored.endswith(".bias")
            names[f"{module}.weight" if quantized else stored] = None
        return list(names)

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        module = self._module(tensor)
        return super().shape(tensor) if module is None else self.format.shape(module, self._stored)

    def stored_codes(self, tensor: str, device: torch.device | str = "cpu") -> WeightCodes | None:
        module = self._module(tensor)
        weight = None if module is None else self.format.read(module, _Stored(self, device))
        if isinstance(weight, torch.Tensor) and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.name} is stored in activation order: such linears are held dense and need their full memory",
                stacklevel=2,
            )
        return None if isinstance(weight, torch.Tensor) else weight

    def read_into(self, tensor: str, out: torch.Tensor) -> None:
        module = self._module(tensor)
        if module is None:
            super().read_into(tensor, out)
            return
        weight = self.format.read(module, _Stored(self, out.device))
        out.copy_(weight if isinstance(weight, torch.Tensor) else weight.dequantize())


class _Stored:
    """The tensors as they lie in the files, for the format's reader; they are read to ``device``."""

    def __init__(self, source: SafetensorsSource, device: torch.device | str = "cpu"):
        self._source = source
        self._device = device

    def has(self, name: str) -> bool:
        return SafetensorsSource.shape(self._source, name) is not None

    def get(self, name: str) -> torch.Tensor:
        return self._source.tensor(name).to(self._device)
