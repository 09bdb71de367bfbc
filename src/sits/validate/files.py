"""Writing reports: whole or not at all, and never through a link into another place."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sits.errors import InputError


def write_atomic(path: Path, text: str) -> None:
    """Write a text file whole or not at all; folders are made. Raises ``InputError`` when it cannot be written."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder", "Give a file name to --output")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}", "Give --output a place that can be written"
        ) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
