"""The operators of a decoder layer: signatures every implementation keeps.

Shapes: T tokens in the step, H query heads, K KV heads, D head_dim. Accumulation is float32 everywhere; the
result has the dtype of the first tensor argument.

``rms_norm(x[T, N], weight[N], eps) -> [T, N]``
    Norm in float32, times weight.
``add_rms_norm(x[T, N], residual[T, N], weight[N], eps) -> (normed[T, N], summed[T, N])``
    summed = x + residual; normed = rms_norm(summed). May write in place into its inputs.
``silu_mul(gate_up[T, 2I]) -> [T, I]``
    silu(first half) * second half.
``rope_kv_write(qkv[T, (H + 2K) * D], cos_sin[P, rotary_dim], k_cache, v_cache, batch, H, K, D) -> q[T, H, D]``
    Split, rotate q and k (half-split layout: cos in the first rotary_dim/2 columns of cos_sin, sin in the rest),
    write k and v into the cache at ``batch.slots`` (slot -1 is skipped), return q.
``attention(q[T, H, D], k_cache, v_cache, batch, scale, window) -> [T, H, D]``
    Causal attention of every query token over the cache, decode rows and prefill chunks together. ``window`` is
    the sliding window in tokens, or 0 for none. ``k_cache`` and ``v_cache`` are tensors, or
    ``kernels.kv_cache.ScaledCache`` when the KV cache is INT8 or FP8 (property ``kv_dtype``).
``rope_decode_attention(qkv, cos_sin, k_cache, v_cache, batch, H, K, D, scale, window) -> [T, H, D]``
    The two above in one launch, for steps of decode rows only. Optional: ``LayerOps.rope_attention`` falls back.
``linear(x[T, in], weight, bias) -> [T, out]``
    ``weight`` is an object of ``sits.quant.linear``; each weight format has its own registered operator
    (``linear_dense``, ``linear_int4``, ``linear_fp8``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sits.kernels.registry import select

if TYPE_CHECKING:
    import torch

    from sits.kernels.attention_batch import AttentionBatch
    from sits.kernels.kv_cache import CacheTensor


class LayerOps:
    """The operators of one model on one device, chosen once when the model is built."""

    NAMES = ("rms_norm", "add_rms_norm", "silu_mul", "rope_kv_write", "attention")

    def __init__(self, device: str, **properties: Any):
        chosen = {name: select(name, device, **properties) for name in self.NAMES}
        self.chosen = {name: entry.name for name, entry in chosen.items()}
        self.rms_norm = chosen["rms_norm"].function
        self.add_rms_norm = chosen["add_rms_norm"].function
        self.silu_mul = chosen["silu_mul"].function
        self.rope_kv_write = chosen["rope_kv_write"].function
        self.attention = chosen["attention"].function
        self._rope_decode_attention = None
        try:
            fused = select("rope_decode_attention", device, **properties)
        except LookupError:
            return
        # Forcing either half to another implementation (SITS_KERNELS) means the pair must not be fused.
        if fused.name == self.chosen["attention"] == self.chosen["rope_kv_write"]:
            self._rope_decode_attention = fused.function
            self.chosen["rope_decode_attention"] = fused.name

    def rope_attention(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        k_cache: CacheTensor,
        v_cache: CacheTensor,
        batch: AttentionBatch,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        """Rotate, write to the cache, attend: qkv[T, (H + 2K) * D] -> [T, H, D], in one launch where that exists."""
        if self._rope_decode_attention is not None and batch.num_decodes == qkv.shape[0]:
            return self._rope_decode_attention(
                qkv, cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim, scale, window
            )
        q = self.rope_kv_write(qkv, cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim)
        return self.attention(q, k_cache, v_cache, batch, scale, window)
