"""A Hugging Face folder as a weight source: one ``model.safetensors`` or shards with an index, memory-mapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from sits.errors import InputError, MissingExtraError
from sits.models.hugging_face_config import read_config
from sits.models.loading.fingerprint import file_hash
from sits.models.loading.source import WeightSource


class SafetensorsSource(WeightSource):
    """Tensors of a folder written by ``save_pretrained``."""

    def __init__(self, folder: str | Path):
        try:
            import safetensors
        except ImportError as error:
            raise MissingExtraError("Reading safetensors", "engine") from error
        self._safetensors = safetensors
        self.folder = Path(folder)
        self.name = str(folder)
        self.config = read_config(self.folder)
        self.paths = self._shards()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._handles: dict[str, Any] = {}
        for path in self.paths:
            handle = self._open(path)
            for tensor in handle.keys():  # noqa: SIM118 - the handle is not a dict
                self._handles[tensor] = handle
                self._shapes[tensor] = tuple(handle.get_slice(tensor).get_shape())

    def _shards(self) -> list[Path]:
        index = self.folder / "model.safetensors.index.json"
        single = self.folder / "model.safetensors"
        if single.is_file():
            return [single]
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, KeyError, AttributeError) as error:
                raise InputError(f"{index} is damaged: {error}", "Download it again") from error
            paths = [self.folder / name for name in names]
        else:
            paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            old = any(self.folder.glob("*.bin"))
            raise InputError(
                f"{self.folder} has no safetensors weights",
                "Convert its .bin files with save_pretrained(safe_serialization=True)" if old else "Check the path",
            )
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise InputError(f"{self.folder} lacks {', '.join(missing)}", "Download the missing files")
        return paths

    def _open(self, path: Path) -> Any:
        try:
            return self._safetensors.safe_open(str(path), framework="pt", device="cpu")
        except (OSError, self._safetensors.SafetensorError) as error:
            raise InputError(f"{path} is truncated or damaged: {error}", "Download the file again") from error

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        return self._shapes.get(tensor)

    def names(self) -> list[str]:
        """All tensors in the folder."""
        return list(self._shapes)

    def tensor(self, tensor: str) -> torch.Tensor:
        """A stored tensor as it is (a view of the mapped file)."""
        return self._handles[tensor].get_tensor(tensor)

    def read_into(self, tensor: str, out: torch.Tensor) -> None:
        out.copy_(self.tensor(tensor))

    def weight_hash(self) -> dict[str, str]:
        return file_hash(self.paths)
