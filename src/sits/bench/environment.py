"""Where a run happens: hardware, driver, versions, revision, container. Imports nothing heavy.

The host name leaves the machine only as a hash, enough to tell "same host" from "another".
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import sits
from sits.spec.result import Environment

# Distributions whose version can change a figure.
_PACKAGES = (
    *("torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "vllm", "humming-kernels"),
    *("msgspec", "uvloop", "httptools", "nvidia-ml-py"),
)
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve", "i8mm", "bf16")


def collect_environment() -> Environment:
    """Everything a comparison needs to tell two machines apart. Never raises; unknown things are left out."""
    return Environment(
        hardware={
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": usable_cores(),
            "cpu_flags": cpu_flags(),
            "memory_gb": memory_gb(),
            "machine": platform.machine(),
            "gpus": nvidia_gpus(),
        },
        software=versions(),
        os=os_name(),
        git_revision=git_revision(Path(__file__).parent),
        hostname_hash=hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        container=in_container(),
    )


def cpu_model() -> str:
    """Marketing name of the CPU, or the architecture."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def cpu_flags() -> list[str]:
    """Instruction sets that matter to inference."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    present = set(match[1].split()) if match else set()
    return [flag for flag in _CPU_FLAGS if flag in present]


def usable_cores() -> float:
    """Cores this process may use: affinity and the container's quota, whichever is smaller."""
    try:
        allowed: float = len(os.sched_getaffinity(0))
    except AttributeError:
        allowed = os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        allowed = min(allowed, int(quota[0]) / int(quota[1]))
    return allowed


def memory_gb() -> float | None:
    """Memory this process may use in GiB, a container's limit included."""
    try:
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return None
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        total = min(total, float(limit))
    return round(total / 2**30, 1)


def nvidia_gpus() -> list[dict[str, Any]]:
    """``[{name, memory_gb, driver, ...}]`` from nvidia-smi; empty without one."""
    fields = "name,memory.total,driver_version,clocks.max.sm,clocks.max.memory,power.limit"
    text = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 6:
            memory = round(float(parts[1]) / 1024, 1) if parts[1].replace(".", "").isdigit() else None
            gpus.append({"name": parts[0], "memory_gb": memory, "driver": parts[2]})
            gpus[-1] |= dict(zip(("max_sm_mhz", "max_memory_mhz", "power_limit_w"), parts[3:]))
    return gpus


def versions() -> dict[str, str]:
    """Versions by distribution name, from metadata: nothing is imported."""
    found = {"python": platform.python_version(), "sits": sits.__version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def os_name() -> str:
    """Distribution and kernel."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read("/etc/os-release"), re.MULTILINE)
    return f"{match[1] if match else platform.system()}, kernel {platform.release()}"


def git_revision(directory: Path) -> str | None:
    """Commit of the checkout that SITS runs from, with ``+changes`` when it was edited; ``None`` when installed."""
    revision = _output("git", "-C", str(directory), "rev-parse", "HEAD").strip()
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        return None
    # A wheel inside someone else's checkout must not borrow that checkout's revision.
    if not _output("git", "-C", str(directory), "ls-files", "--", str(Path(__file__))).strip():
        return None
    edited = _output("git", "-C", str(directory), "status", "--porcelain", "--untracked-files=no").strip()
    return revision + ("+changes" if edited else "")


def in_container() -> bool:
    """Does this look like a container?"""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    return bool(re.search(r"docker|kubepods|containerd|lxc", _read("/proc/1/cgroup")))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
