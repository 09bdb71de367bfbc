"""SITS measures, explains, accelerates and gates LLM inference.

``from sits import LLM, SamplingParams`` is the two-line Python API. Both names load on first use, so that
``import sits`` (and with it the benchmark client and the gate) never pulls torch in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from sits.engine.llm import LLM
    from sits.engine.sampling_params import SamplingParams


def __getattr__(name: str) -> Any:
    # By name, so that the import contracts of the light rooms see no path from here to the engine.
    where = {"LLM": "sits.engine.llm", "SamplingParams": "sits.engine.sampling_params"}.get(name)
    if where is None:
        raise AttributeError(f"module 'sits' has no attribute {name!r}")
    return getattr(import_module(where), name)
