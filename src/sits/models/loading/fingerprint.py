"""Identify weight files: a full SHA-256 where that is quick, a sampled fingerprint of large ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

FULL_HASH_LIMIT = 1 << 30  # bytes; about a second of hashing
_PIECE = 1 << 20


def file_hash(paths: Sequence[Path]) -> dict[str, str]:
    """``{"sha256": ...}`` of the files in order, or ``{"fingerprint": "sampled-sha256:..."}`` above a GiB.

    The fingerprint hashes each file's size and 16 evenly spaced pieces of 1 MiB, the first (header) included.
    """
    sizes = [path.stat().st_size for path in paths]
    digest = hashlib.sha256()
    if sum(sizes) <= FULL_HASH_LIMIT:
        for path in paths:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        return {"sha256": digest.hexdigest()}
    for path, size in zip(paths, sizes):
        digest.update(f"{size}:".encode())
        with path.open("rb") as file:
            for step in range(16):
                file.seek(step * max(size - _PIECE, 0) // 15)
                digest.update(file.read(_PIECE))
    return {"fingerprint": f"sampled-sha256:{digest.hexdigest()}"}
