"""Turn what a user calls a model into a place where its weights are.

Accepted everywhere a model is named: a packaged name (``smollm2-135m``), a Hugging Face folder, a ``.gguf`` file,
``synthetic:<preset>[?layers=N&seed=S]``, a Hub id (``org/name``).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from sits.errors import InputError, MissingExtraError
from sits.models.hub import PACKAGED, fetch
from sits.models.presets import PRESETS

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "tokenizer*"]


@dataclass(frozen=True)
class ModelLocation:
    """``kind`` is gguf, folder or synthetic; ``path`` is None for synthetic models."""

    name: str
    kind: str
    path: Path | None = None


def resolve(name: str) -> ModelLocation:
    """Find a model, fetching it if it is a packaged name or a Hub id. Raises ``InputError`` when there is none."""
    if name.startswith("synthetic:"):
        return ModelLocation(name, "synthetic")
    if name in PACKAGED:
        return ModelLocation(name, "gguf", fetch(name))
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if not (path / "config.json").is_file() and len(files) == 1:
            return ModelLocation(name, "gguf", files[0])
        return ModelLocation(name, "folder", path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"{path} is not a .gguf file", "Give a .gguf file or the folder with config.json")
        return ModelLocation(name, "gguf", path)
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")) or (path.parent.is_dir() and "/" in name):
        raise InputError(f"model file or folder {name} does not exist", "Check the path")
    if _HUB_ID.fullmatch(name):
        return ModelLocation(name, "folder", _from_hub(name))
    known = [*PACKAGED, *(f"synthetic:{preset}" for preset in PRESETS)]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(known)}; or a folder, .gguf file or Hub id"
    raise InputError(f"there is no model {name!r}", hint)


def _from_hub(name: str) -> Path:
    """The folder of a Hub snapshot: from the local cache when complete there, else downloaded."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError("Loading models from the Hugging Face Hub", "engine") from error
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:  # the hub client raises a dozen unrelated types for "not there" and "no network"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"cannot fetch {name} from the Hugging Face Hub: {reason}",
            "Check the name and the network, or give a local folder",
        ) from error
