"""What the client benchmarks share: pinning, CPU time, and writing results."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "results"


def pin(core: int) -> None:
    """Keep this process on one core, where the system allows it."""
    if hasattr(os, "sched_setaffinity") and core in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {core})


def real_time() -> bool:
    """Run this process and its children before all others (needs root), for a machine that others keep busy."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, PermissionError):
        return False
    return True


def machine() -> dict[str, Any]:
    """Where the figures come from, the load of other processes included."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        rows = (line for line in cpuinfo.read_text().splitlines() if line.startswith("model name"))
        model = next(rows, ":").partition(":")[2].strip()
    load = os.getloadavg()[0]
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "load_average_1m": load}


def save(name: str, figures: dict[str, Any]) -> Path:
    """Write ``benchmarks/results/<name>.json`` and print it."""
    RESULTS.mkdir(exist_ok=True)
    body = {"measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine(), **figures}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    return path
