"""Compile ``kernels.c`` for this machine on first use and load it; a second or two once, then from the cache.

Optional: without a C compiler, with ``SITS_NATIVE=0``, or when anything fails, ``library()`` is None,
``unavailable_because()`` says why, and the PyTorch kernels run instead.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O2", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-fopenmp", "-Wno-psabi", "-w")
_OPENMP_NAMES = ("libgomp", "libomp", "libiomp5")
_reason: str | None = None


class NativeUnavailable(Exception):
    """Why the native kernels cannot be used."""


def unavailable_because() -> str | None:
    """Why ``library()`` is None; None when it is there."""
    library()
    return _reason


@functools.cache
def library() -> ctypes.CDLL | None:
    """The loaded kernels, or None (see ``unavailable_because``)."""
    global _reason
    try:
        return _load()
    except (NativeUnavailable, OSError, subprocess.SubprocessError) as error:
        _reason = str(error) or type(error).__name__
        return None


def _load() -> ctypes.CDLL:
    if os.environ.get("SITS_NATIVE", "1") == "0":
        raise NativeUnavailable("switched off by SITS_NATIVE=0")
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NativeUnavailable("no C compiler found (Debian: apt-get install gcc libc6-dev)")
    openmp = _loaded_openmp()
    source = Path(__file__).with_name("kernels.c")
    path = _cache_folder() / f"kernels-{_key(source, compiler)}.so"
    if not path.is_file():
        _compile(compiler, source, path)
    # The kernels use the OpenMP runtime that torch has loaded already, so that one pool of threads serves both;
    # they are not linked to any, and find its symbols because it is made global here.
    ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _loaded_openmp() -> str:
    """Path of the OpenMP library in this process."""
    import torch  # noqa: F401 - brings its OpenMP runtime

    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError as error:
        raise NativeUnavailable("cannot list loaded libraries (not Linux)") from error
    for line in lines:
        path = line.rsplit(maxsplit=1)[-1]
        if path.startswith("/") and Path(path).name.startswith(_OPENMP_NAMES):
            return path
    raise NativeUnavailable("torch has no OpenMP runtime loaded")


def _cache_folder() -> Path:
    folder = Path(os.environ.get("SITS_CACHE") or "~/.cache/sits").expanduser() / "native"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key(source: Path, compiler: str) -> str:
    """Differs whenever the code, the flags, the compiler or the processor's instructions do."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(" ".join((compiler, *FLAGS, platform.machine())).encode())
    digest.update(str(os.stat(compiler).st_mtime_ns).encode())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    wanted = ("flags", "Features", "model name", "CPU part")
    digest.update("\n".join(sorted({line for line in lines if line.startswith(wanted)})).encode())
    return digest.hexdigest()[:20]


def _compile(compiler: str, source: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as scratch:
        item = Path(scratch) / "kernels.o"
        part = Path(scratch) / "kernels.so"
        # Two steps: -fopenmp when linking would bring a second OpenMP runtime in.
        for command in (
            [compiler, *FLAGS, "-c", str(source), "-o", str(item)],
            [compiler, "-shared", str(item), "-o", str(part), "-lm"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
                raise NativeUnavailable(f"{Path(compiler).name} failed: {lines[0][:200]}")
        os.replace(part, path)  # atomic: another process may be building the same file
