"""Which CUDA kernel decode attention takes; launch shapes of the line kernel within a Hopper multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sits.kernels.cuda import attention_choice, attention_limits
from sits.kernels.cuda import decode_attention as cluster
from sits.kernels.cuda import line_attention as line
from sits.kernels.kv_cache import ScaledCache
from sits.kernels.testing import paged_batch

SHAPES = [line.LineShape(8, 3, 1), line.LineShape(8, 2, 1), line.LineShape(4, 3, 2), line.LineShape(4, 2, 2)]


def chosen():
    batch = paged_batch([40, 7], [1, 1], 16)
    qkv = torch.empty(2, (8 + 2 * 8) * 128)
    return attention_choice.kernel_for(qkv, torch.empty(9, 16, 8, 128), batch, 8, 8, 128, 64)


@pytest.mark.parametrize(
    ("rule", "short", "long"),
    [
        (None, cluster.decode_attention, line.line_attention),
        ("mixed", cluster.decode_attention, line.line_attention),
        ("cluster", cluster.decode_attention, None),
        ("line", line.line_attention, line.line_attention),
        ("0", None, None),
    ],
)
def test_short_contexts_go_to_clusters_and_long_ones_to_the_line_unless_told_otherwise(
    monkeypatch, rule, short, long
):
    monkeypatch.delenv("SITS_CUDA_ATTENTION", raising=False)
    if rule is not None:
        monkeypatch.setenv("SITS_CUDA_ATTENTION", rule)
    assert chosen() is None  # the tensors are not on a GPU
    monkeypatch.setattr(cluster, "fits", lambda *_: True)
    monkeypatch.setattr(line, "fits", lambda *_: True)
    assert chosen() is short
    monkeypatch.setattr(cluster, "fits", lambda *_: False)  # a long context
    assert chosen() is long
    monkeypatch.setattr(line, "fits", lambda *_: False)
    assert chosen() is None


@dataclass
class OnHopper:
    """What ``fits`` asks a tensor of queries, keys and values."""

    dtype: torch.dtype = torch.bfloat16
    is_cuda: bool = True
    row: int = 128
    address: int = 256

    def stride(self, dimension: int) -> int:
        return self.row

    def data_ptr(self) -> int:
        return self.address


def taken(qkv=None, cache=None, size=16, longest=40, heads=8, kv_heads=2, head_dim=128, half=64):
    """Which of the two kernels take a step."""
    batch = paged_batch([longest, 7], [1, 1], size)
    cache = torch.empty(1) if cache is None else cache
    step = (qkv or OnHopper(), cache, batch, heads, kv_heads, head_dim, half)
    return {name for name, kernel in (("cluster", cluster), ("line", line)) if kernel.fits(*step)}


@pytest.mark.parametrize(
    ("step", "kernels"),
    [
        ({}, {"cluster", "line"}),
        ({"head_dim": 64, "half": 32, "size": 64, "heads": 16}, {"cluster", "line"}),
        ({"head_dim": 96, "half": 48}, set()),
        ({"heads": 18}, set()),
        ({"size": 8}, set()),
        ({"size": 48}, set()),
        ({"qkv": OnHopper(torch.float32)}, set()),
        ({"qkv": OnHopper(is_cuda=False)}, set()),
        ({"cache": "neither"}, set()),
        ({"cache": ScaledCache(torch.empty(1), torch.empty(1))}, {"line"}),
        ({"longest": cluster.LONGEST + 1}, {"line"}),
        ({"half": 32}, {"cluster"}),  # a part of the head is rotated
        ({"half": 33}, set()),
        ({"qkv": OnHopper(row=132)}, {"cluster"}),
        ({"qkv": OnHopper(address=264)}, {"cluster"}),
    ],
)
def test_what_the_kernels_take(monkeypatch, step, kernels):
    monkeypatch.setattr(attention_limits, "is_available", lambda: True)
    assert taken(**step) == kernels
    monkeypatch.setattr(attention_limits, "is_available", lambda: False)
    assert taken(**step) == set()


@pytest.mark.parametrize("shape", [line.LineShape(), *SHAPES])
@pytest.mark.parametrize(("head_dim", "group", "kind"), [(128, 8, 0), (128, 1, 1), (64, 8, 2), (64, 3, 0)])
def test_launch_shapes_fit_a_hopper_multiprocessor(shape, head_dim, group, kind):
    used = line.shared_bytes(shape, head_dim, group, kind)
    assert used <= 227 * 1024
    assert shape.blocks * (used + 1024) <= 228 * 1024
    assert shape.blocks * shape.warps * 32 * 168 <= 65536  # registers, at the least that was compiled without spills


@pytest.mark.parametrize(
    ("head_dim", "group", "bf16", "kind"), [(128, 8, 0, 0), (64, 3, 1, 0), (128, 8, 1, 1), (64, 8, 0, 2)]
)
def test_compiles_for_hopper(head_dim, group, bf16, kind):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    from sits.kernels.cuda.module import SOURCES, CudaError, compile_source

    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"no NVRTC library: {error}")
    defines = line.definitions(head_dim, group, bool(bf16), kind, line.LineShape())
    source = (SOURCES / "line_attention.cu").read_text()
    assert compile_source(source, defines, "sm_90a")[:4] == b"\x7fELF"
    with pytest.raises(CudaError, match="counts otherwise"):
        compile_source(source, defines | {"SHARED_BYTES": 1000}, "sm_90a")


@given(st.integers(1, 200), st.integers(0, 10**6), st.integers(1, 64))
def test_no_cta_is_launched_that_the_longest_contexts_would_leave_idle(multiprocessors, slices, min_share):
    ctas = line.ctas_for(multiprocessors, line.LineShape(), slices, min_share)
    assert 1 <= ctas <= multiprocessors
    assert ctas == 1 or (ctas - 1) * min_share < slices
