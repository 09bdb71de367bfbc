"""Shared by all tiers: GPU tests are skipped with a reason where no CUDA device is found."""

from __future__ import annotations

import pytest


def _no_gpu_reason() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "no CUDA device on this machine"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := _no_gpu_reason()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
