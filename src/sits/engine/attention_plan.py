"""Gives the decode attention of a GPU its plan: tile and shares for this device, these heads, these contexts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sits.models.model import CausalModel
from sits.policy.kv_planner import DecodePlan, DeviceLimits, HeadLayout, plan_decode
from sits.quant.kv import storage_dtype


class AttentionPlanner:
    """``policy.kv_planner`` with the limits of the model's device filled in."""

    def __init__(self, model: CausalModel, kv_dtype: str):
        self._limits: DeviceLimits | None = None
        if model.device.type == "cuda":
            found = torch.cuda.get_device_properties(model.device)
            shared = int(getattr(found, "shared_memory_per_block_optin", 0)) or 48 << 10
            whole = int(getattr(found, "shared_memory_per_multiprocessor", 0))
            self._limits = DeviceLimits(found.multi_processor_count, shared, whole)
        shape = model.config
        stored = storage_dtype(kv_dtype) or model.dtype
        self._layout = HeadLayout(shape.heads, shape.kv_heads, shape.head_dim, stored.itemsize)

    def plan(self, context_lens: Sequence[int]) -> DecodePlan | None:
        """The plan for decode rows of these contexts; ``None`` where attention needs none (a CPU plans itself)."""
        if self._limits is None or not context_lens:
            return None
        return plan_decode(self._limits, self._layout, context_lens)
