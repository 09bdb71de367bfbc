"""Operators and their implementations: one signature per operator, the best supported one is chosen.

An operator is a name; ``sits.kernels.ops`` documents its signature. An implementation is a function registered
for a device type with a priority and a ``supports`` test. ``SITS_KERNELS="attention=reference,silu_mul=triton"``
forces a choice (the ablation switch); ``*=reference`` forces all.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Supports = Callable[..., bool]


@dataclass(frozen=True)
class Implementation:
    """One way to run an operator."""

    operator: str
    name: str  # reference, cpu, triton, cuda, humming, ascend, ...
    function: Callable[..., Any]
    devices: tuple[str, ...]  # torch device types; () means any
    priority: int
    supports: Supports | None
    prepare: Callable[[Any], None] | None = None  # linears: bring a weight object into this kernel's layout, once

    def is_supported(self, device: str, **properties: Any) -> bool:
        """Whether it can run there. Properties are what the caller knows: dtype, head_dim, group_size, ..."""
        if self.devices and device not in self.devices:
            return False
        return self.supports is None or bool(self.supports(**properties))


_implementations: dict[str, list[Implementation]] = {}
_loaded_devices: set[str] = set()


def register(
    operator: str,
    name: str,
    *,
    devices: tuple[str, ...] = (),
    priority: int = 0,
    supports: Supports | None = None,
    prepare: Callable[[Any], None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that registers a function as an implementation of ``operator``. Higher priority wins."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        entries = _implementations.setdefault(operator, [])
        entries[:] = [entry for entry in entries if entry.name != name]
        entries.append(Implementation(operator, name, function, devices, priority, supports, prepare))
        entries.sort(key=lambda entry: -entry.priority)
        return function

    return add


def _load(device: str) -> None:
    """Import the modules that register implementations for a device type, once."""
    if device in _loaded_devices:
        return
    _loaded_devices.add(device)
    importlib.import_module("sits.kernels.reference")
    for module in {"cpu": ("sits.kernels.cpu",), "cuda": ("sits.kernels.triton",)}.get(device, ()):
        try:
            importlib.import_module(module)
        except ImportError as error:
            if os.environ.get("SITS_DEBUG"):
                raise
            _import_failures[module] = str(error)


_import_failures: dict[str, str] = {}


def import_failures() -> dict[str, str]:
    """Kernel modules that could not be imported and why (shown by ``sits doctor``)."""
    return dict(_import_failures)


def implementations(operator: str, device: str) -> list[Implementation]:
    """All implementations of an operator known for a device type, best first."""
    _load(device)
    return list(_implementations.get(operator, ()))


def _forced(operator: str) -> str | None:
    choice = None
    for part in os.environ.get("SITS_KERNELS", "").split(","):
        key, _, value = part.strip().partition("=")
        if value and key in (operator, "*"):
            choice = value
            if key == operator:
                break
    return choice


def select(operator: str, device: str, **properties: Any) -> Implementation:
    """The implementation to use. Raises ``LookupError`` when none fits or the forced one does not."""
    candidates = implementations(operator, device)
    forced = _forced(operator)
    for entry in candidates:
        if forced is not None and entry.name != forced:
            continue
        if entry.is_supported(device, **properties):
            return entry
    wanted = f" named {forced!r} (SITS_KERNELS)" if forced else ""
    known = ", ".join(entry.name for entry in candidates) or "none"
    raise LookupError(f"no implementation{wanted} of {operator!r} for {device} with {properties}; known: {known}")
