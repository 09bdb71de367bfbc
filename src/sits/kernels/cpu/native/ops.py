"""The native kernels as registered operators: thin wrappers that pass pointers.

They take float32 and bfloat16. What they do not cover (8-bit KV caches, odd head sizes, prompts' attention and large
matrix products) goes to the PyTorch kernels beside them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cpu import attention as torch_attention
from sits.kernels.cpu import layer as torch_layer
from sits.kernels.cpu.native.build import library
from sits.kernels.cpu.native.weights import (
    BFLOAT16,
    EXPAND_ELEMENTS,
    FLOAT32,
    GROUP,
    NativeInt4,
    NativeWeight,
)
from sits.kernels.kv_cache import CacheTensor
from sits.kernels.registry import register

_TYPES = {torch.float32: 0, torch.bfloat16: 1}
# Above this many tokens a weight is read often enough that a matrix library's blocking wins.
SMALL_BATCH = 16
_MAX_GROUP, _MAX_HEAD_DIM = 16, 256


def _bind() -> Any:
    native = library()
    if native is None:
        return None
    pointer, number, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
    native.sits_linear.argtypes = [pointer] * 5 + [number] * 2
    native.sits_expand.argtypes = [pointer] * 2 + [number] * 2
    native.sits_add_rms_norm.argtypes = [pointer] * 5 + [number] * 2 + [real, number]
    native.sits_silu_mul.argtypes = [pointer] * 2 + [number] * 3
    native.sits_rope_kv_write.argtypes = [pointer] * 7 + [number] * 6
    native.sits_decode_attention.argtypes = [pointer] * 6 + [number] * 6 + [real] + [number] * 2
    for name in ("linear", "expand", "add_rms_norm", "silu_mul", "rope_kv_write", "decode_attention"):
        getattr(native, f"sits_{name}").restype = None
    return native


_native = _bind()


def _supports(dtype: torch.dtype | None = None, head_dim: int = 16, **properties: Any) -> bool:
    return _native is not None and dtype in (None, *_TYPES) and head_dim % 16 == 0 and head_dim <= _MAX_HEAD_DIM


@register("rms_norm", "native", devices=("cpu",), priority=20, supports=_supports)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[T, N] -> [T, N]; see ``sits.kernels.ops``."""
    tokens, width = x.shape
    if width % 16 or not x.is_contiguous():
        return torch_layer.rms_norm(x, weight, eps)
    out = torch.empty_like(x)
    _native.sits_add_rms_norm(
        x.data_ptr(), None, weight.data_ptr(), out.data_ptr(), None, tokens, width, eps, _TYPES[x.dtype]
    )
    return out


@register("add_rms_norm", "native", devices=("cpu",), priority=20, supports=_supports)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + residual) normed, and the sum, which takes the place of the residual."""
    tokens, width = x.shape
    if width % 16 or not (x.is_contiguous() and residual.is_contiguous()):
        return torch_layer.add_rms_norm(x, residual, weight, eps)
    out = torch.empty_like(x)
    total = residual.data_ptr()
    _native.sits_add_rms_norm(
        x.data_ptr(), total, weight.data_ptr(), out.data_ptr(), total, tokens, width, eps, _TYPES[x.dtype]
    )
    return out, residual


@register("silu_mul", "native", devices=("cpu",), priority=20, supports=_supports)
def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up[T, 2I] -> silu(gate) * up, [T, I]."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    if width % 16 or not gate_up.is_contiguous():
        return torch_layer.silu_mul(gate_up)
    out = gate_up.new_empty(tokens, width)
    _native.sits_silu_mul(gate_up.data_ptr(), out.data_ptr(), tokens, width, _TYPES[gate_up.dtype])
    return out


@register("rope_kv_write", "native", devices=("cpu",), priority=20, supports=_supports)
def rope_kv_write(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> torch.Tensor:
    """Rotate q and k, store k and v, return q[T, H, D]."""
    rotary = cos_sin.shape[1]
    if not _plain(k_cache, v_cache, qkv.dtype) or rotary % 32 or cos_sin.dtype != torch.float32:
        return torch_layer.rope_kv_write(qkv, cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim)
    tokens = qkv.shape[0]
    q = qkv.new_empty(tokens, heads, head_dim)
    _native.sits_rope_kv_write(
        qkv.data_ptr(),
        cos_sin.data_ptr(),
        batch.positions.data_ptr(),
        batch.slots.data_ptr(),
        q.data_ptr(),
        k_cache.data_ptr(),  # type: ignore[union-attr]
        v_cache.data_ptr(),  # type: ignore[union-attr]
        tokens,
        heads,
        kv_heads,
        head_dim,
        rotary,
        _TYPES[qkv.dtype],
    )
    return q


def _plain(k_cache: CacheTensor, v_cache: CacheTensor, dtype: torch.dtype) -> bool:
    """Whether the cache holds values of the model's dtype, contiguous."""
    return (
        isinstance(k_cache, torch.Tensor)
        and isinstance(v_cache, torch.Tensor)
        and k_cache.dtype == dtype == v_cache.dtype
        and k_cache.is_contiguous()
        and v_cache.is_contiguous()
    )


@register("attention", "native", devices=("cpu",), priority=20, supports=_supports)
def attention(
    q: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """q[T, H, D] -> [T, H, D]: decode rows in one native call over the block tables, prompts by PyTorch."""
    heads, head_dim = q.shape[1:]
    kv_heads, rows = k_cache.shape[2], batch.num_decodes
    if not rows or not _plain(k_cache, v_cache, q.dtype) or heads > _MAX_GROUP * kv_heads or not q.is_contiguous():
        return torch_attention.attention(q, k_cache, v_cache, batch, scale, window)
    out = torch.empty_like(q)
    tables = batch.block_tables
    _native.sits_decode_attention(
        q.data_ptr(),
        k_cache.data_ptr(),  # type: ignore[union-attr]
        v_cache.data_ptr(),  # type: ignore[union-attr]
        tables.data_ptr(),
        batch.context_lens.data_ptr(),
        out.data_ptr(),
        rows,
        tables.stride(0),
        batch.block_size,
        heads,
        kv_heads,
        head_dim,
        scale,
        window,
        _TYPES[q.dtype],
    )
    if rows < len(batch.query_lens_host):
        assert isinstance(k_cache, torch.Tensor)
        assert isinstance(v_cache, torch.Tensor)
        torch_attention.attend(q, k_cache, v_cache, batch, scale, window, out, skip=rows)
    return out


def _supports_linear(in_features: int = GROUP, group_size: int = 0, dtype: Any = None, **properties: Any) -> bool:
    """Rows of whole groups of 32; of quantised ones at most 1024 (the kernel's room for their scales)."""
    if _native is None or dtype not in (None, *_TYPES) or in_features % GROUP or group_size % GROUP:
        return False
    return not group_size or in_features <= 1024 * GROUP


def _multiply(x: torch.Tensor, weight: NativeWeight, bias: torch.Tensor | None) -> torch.Tensor:
    tokens = x.shape[0]
    if not x.is_contiguous():
        x = x.contiguous()
    out = x.new_empty(tokens, weight.rows)
    kind = _TYPES[x.dtype]
    # The bfloat16 kernel widens its input once: the buffer must live until the call returns.
    scratch = torch.empty(x.shape, dtype=torch.float32) if kind else None
    _native.sits_linear(
        weight.pointer,
        x.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        None if scratch is None else scratch.data_ptr(),
        tokens,
        kind,
    )
    return out


def _multiply_expanded(x: torch.Tensor, weight: NativeWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """A long prompt: pieces of the weight as float32, each multiplied by the matrix library."""
    wide = x.float()
    out = x.new_empty(x.shape[0], weight.rows)
    step = max(1, min(weight.rows, EXPAND_ELEMENTS // weight.columns))
    piece = torch.empty(step, weight.columns)
    for first in range(0, weight.rows, step):
        last = min(first + step, weight.rows)
        _native.sits_expand(weight.pointer, piece.data_ptr(), first, last)
        part = None if bias is None else bias[first:last].float()
        out[:, first:last] = torch.nn.functional.linear(wide, piece[: last - first], part)
    return out


def _prepare_dense(weight: Any) -> None:
    """Row-major as it is: nothing is copied, a tied embedding stays shared."""
    kind = FLOAT32 if weight.dtype == torch.float32 else BFLOAT16
    weight.native = NativeWeight(kind, weight.out_features, weight.in_features, weight.weight.contiguous())


@register("linear_dense", "native", devices=("cpu",), priority=20, supports=_supports_linear, prepare=_prepare_dense)
def linear_dense(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]; see ``sits.kernels.ops``."""
    if x.shape[0] <= SMALL_BATCH:
        return _multiply(x, weight.native, bias)
    if weight.native.kind == BFLOAT16 and not _native_bfloat16():
        return _multiply_expanded(x, weight.native, bias)
    return torch.nn.functional.linear(x, weight.weight, bias)


def _native_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16; emulated, it is several times slower than float32."""
    cpu = torch.cpu
    return bool(cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())


def _prepare_int4(weight: Any) -> None:
    weight.packed, weight.codes = NativeInt4(weight.codes), None


@register("linear_int4", "native", devices=("cpu",), priority=20, supports=_supports_linear, prepare=_prepare_int4)
def linear_int4(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]; the weights are those of the dense model exactly, expanded in registers."""
    if x.shape[0] <= SMALL_BATCH:
        return _multiply(x, weight.packed, bias)
    return _multiply_expanded(x, weight.packed, bias)
