"""What every Triton kernel here shares: interpreter detection and programmatic dependent launch.

A kernel that is launched with ``launch_pdl`` may start while the previous one still runs. Each kernel therefore first
lets its own successor start, then waits for its predecessor before it touches memory; what it can load before the
wait is only what no kernel writes (weights).
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

if INTERPRETED:  # the interpreter has no grid dependency control

    @triton.jit
    def release_next(PDL: tl.constexpr):
        pass

    @triton.jit
    def wait_previous(PDL: tl.constexpr):
        pass

else:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    @triton.jit
    def release_next(PDL: tl.constexpr):
        """Let the next kernel start; it waits by itself for this one's results.

        Short kernels do so first. One that fills the card does so last: programs placed while it still holds its
        multiprocessors would go wherever there is room, several on one and none on another.
        """
        if PDL:
            gdc_launch_dependents()

    @triton.jit
    def wait_previous(PDL: tl.constexpr):
        """Wait until all earlier kernels have ended and their writes are visible; harmless when repeated."""
        if PDL:
            gdc_wait()


@triton.jit
def begin(PDL: tl.constexpr):
    """First statement of most kernels: let the next kernel start, wait for the previous one."""
    release_next(PDL)
    wait_previous(PDL)


_PREFETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.b32 $0, 0;")


@triton.jit
def prefetch(pointers, PDL: tl.constexpr):
    """Ask for the cache lines at ``pointers`` to be brought into L2 (where dependent launch exists, else nothing)."""
    if PDL:
        tl.inline_asm_elementwise(_PREFETCH, "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)


@cache
def _hopper(device: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def pdl_options(tensor: torch.Tensor) -> dict[str, Any]:
    """Keyword arguments of a launch: ``PDL`` for the kernel and, where it applies, ``launch_pdl`` for the driver.

    ``SITS_PDL=0`` turns programmatic dependent launch off (the ablation switch).
    """
    if INTERPRETED or not tensor.is_cuda:
        return {"PDL": False}
    if os.environ.get("SITS_PDL", "1") == "0" or not _hopper(tensor.device.index or 0):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}
