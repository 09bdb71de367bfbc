"""Shares of a decode step's execution from a profiler trace in Chrome's JSON form (PyTorch and Nsight export it).

Device kernels are classed by name; device time inside the traced span with nothing running is launch gaps.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from sits.errors import InputError

_COPY = ("gpu_memcpy", "gpu_memset", "memcpy")
_CLASSES = (
    ("kv", re.compile(r"attn|attention|flash|fmha|paged|softmax|kv_cache|reshape_and_cache|rope", re.IGNORECASE)),
    ("communication", re.compile(r"nccl|rccl|all_?reduce|all_?gather", re.IGNORECASE)),
    (
        "weights",
        re.compile(r"gemm|gemv|matmul|linear|cutlass|wgmma|cublas|marlin|humming|int4|w4a16|splitk|addmm|\bmm\b|nvjet",
                   re.IGNORECASE),
    ),
)  # fmt: skip


def classify(name: str) -> str:
    """Kernel name -> piece of the waterfall."""
    for piece, pattern in _CLASSES:
        if pattern.search(name):
            return piece
    return "activations"


def read_trace(path: Path) -> dict[str, float]:
    """Shares of the traced device time by piece; they sum to 1. Raises ``InputError`` without device events.

    On a CPU-only trace the operators of the outermost level stand in for kernels.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        document = json.loads(raw)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read the profiler trace {path}: {error}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path} is not a Chrome trace", "Export it with torch.profiler's export_chrome_trace")
    device = [e for e in events if _is(e, "kernel", *_COPY)]
    host = [e for e in events if _is(e, "cpu_op")]
    spans = _spans(device) if device else _outermost(_spans(host))
    if not spans:
        raise InputError(f"{path} holds neither device kernels nor operators")
    return _shares(spans)


def _is(event: Any, *categories: str) -> bool:
    return isinstance(event, dict) and event.get("ph") == "X" and str(event.get("cat", "")).lower() in categories


def _spans(events: list[Any]) -> list[tuple[float, float, str]]:
    found = []
    for event in events:
        try:
            start, length = float(event["ts"]), float(event["dur"])
        except (KeyError, TypeError, ValueError):
            continue
        copy = str(event.get("cat", "")).lower() in _COPY
        name = str(event.get("name", ""))
        found.append((start, start + length, _copy_piece(name) if copy else classify(name)))
    return sorted(found)


def _copy_piece(name: str) -> str:
    return "host_to_device" if "HtoD" in name or "DtoH" in name else "activations"


def _outermost(spans: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    found: list[tuple[float, float, str]] = []
    for span in spans:
        if not found or span[0] >= found[-1][1]:
            found.append(span)
    return found


def _shares(spans: list[tuple[float, float, str]]) -> dict[str, float]:
    """Busy time by class and the idle rest; overlapping kernels count the overlap for the earlier one."""
    total = max(end for _, end, _ in spans) - spans[0][0]
    busy: dict[str, float] = {}
    reached = spans[0][0]
    for start, end, piece in spans:
        fresh = end - max(start, reached)
        if fresh > 0:
            busy[piece] = busy.get(piece, 0.0) + fresh
            reached = end
    shares = {piece: time / total for piece, time in busy.items()}
    shares["launches"] = max(0.0, 1.0 - sum(shares.values()))
    return shares
