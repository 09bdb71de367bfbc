"""Writes a safetensors checkpoint folder: a shard at a time in memory, and the whole folder or nothing on disk."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from sits.errors import InputError, MissingExtraError, SitsError

SHARD_BYTES = 2 << 30


class CheckpointWriter:
    """Context manager. Files go to a hidden folder beside ``out``, renamed to ``out`` when the block ends well.

    After an error, an interrupt or a full disk nothing is left. Raises ``InputError`` when ``out`` exists already.
    """

    def __init__(self, out: str | Path, shard_bytes: int = SHARD_BYTES):
        try:
            import safetensors.torch
        except ImportError as error:
            raise MissingExtraError("Writing safetensors", "engine") from error
        self._safetensors = safetensors
        self.out = Path(out)
        self.shard_bytes = shard_bytes
        self.tensor_bytes = 0
        self._shard: dict[str, torch.Tensor] = {}
        self._shard_size = 0
        self._files: list[list[str]] = []  # tensor names of each shard written

    def __enter__(self) -> CheckpointWriter:
        if self.out.exists():
            raise InputError(f"{self.out} exists already", "Choose another --out, or remove it first")
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self.out.parent, prefix=f".{self.out.name}.partial-"))
        except OSError as error:
            raise InputError(f"cannot write to {self.out.parent}: {error.strerror or error}") from error
        return self

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Append a tensor."""
        size = tensor.numel() * tensor.element_size()
        if self._shard and self._shard_size + size > self.shard_bytes:
            self._flush()
        self._shard[name] = tensor.detach().cpu().contiguous()
        self._shard_size += size
        self.tensor_bytes += size

    def write_text(self, name: str, text: str) -> None:
        """Write a further file of the folder."""
        with _disk_errors(self.out):
            (self._folder / name).write_text(text, encoding="utf-8")

    def write_json(self, name: str, data: dict[str, Any]) -> None:
        """Write a JSON file of the folder."""
        self.write_text(name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def copy(self, path: Path) -> None:
        """Copy a file into the folder under its own name."""
        with _disk_errors(self.out):
            shutil.copyfile(path, self._folder / path.name)

    def _path(self, number: int) -> Path:
        return self._folder / f"shard-{number:05d}.safetensors"

    def _flush(self) -> None:
        with _disk_errors(self.out):
            try:
                self._safetensors.torch.save_file(
                    self._shard, str(self._path(len(self._files))), metadata={"format": "pt"}
                )
            except self._safetensors.SafetensorError as error:
                raise OSError(str(error)) from error
        self._files.append(list(self._shard))
        self._shard, self._shard_size = {}, 0

    def _finish(self) -> None:
        if self._shard:
            self._flush()
        count = len(self._files)
        weight_map = {}
        for number, names in enumerate(self._files):
            final = "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            self._path(number).rename(self._folder / final)
            weight_map.update(dict.fromkeys(names, final))
        if count > 1:
            index = {"metadata": {"total_size": self.tensor_bytes}, "weight_map": dict(sorted(weight_map.items()))}
            self.write_json("model.safetensors.index.json", index)
        with _disk_errors(self.out):
            for path in self._folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            # mkdtemp and safetensors make private files; a checkpoint is an ordinary one.
            mask = _umask()
            for path in self._folder.iterdir():
                path.chmod(0o666 & ~mask)
            self._folder.chmod(0o777 & ~mask)
            # A folder that appeared meanwhile and is not empty makes this fail: it is never written over.
            self._folder.rename(self.out)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class _disk_errors:
    """Turns an OSError of a write into one line that says what to do."""

    def __init__(self, out: Path):
        self.out = out

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise SitsError(
                f"cannot write {self.out}: {reason}",
                "Nothing was left behind; free some space or choose another --out",
            ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
