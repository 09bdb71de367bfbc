"""Which layouts of an INT4 weight a CUDA kernel is given, as far as it needs no GPU: packing runs anywhere."""

from __future__ import annotations

import pytest
import torch

from sits.kernels import int4_linear
from sits.kernels.cuda import int4
from sits.kernels.cuda.wgmma_layout import WgmmaInt4
from sits.quant.int4 import Int4Codes

DTYPE = torch.bfloat16


def codes(rows: int, columns: int) -> Int4Codes:
    dense = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.05
    return Int4Codes.from_dense(dense, 32)


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """The CUDA kernels' module, as if there were a card for it."""
    monkeypatch.setattr(int4_linear, "_own", lambda: int4)


def test_the_dense_scratch_is_made_from_the_wgmma_layout():
    made = int4_linear.layouts_for("dense", codes(128, 128), DTYPE)
    assert list(made) == ["wgmma"]
    assert isinstance(made["wgmma"], WgmmaInt4)
    assert not int4_linear.layouts_for("dense", codes(40, 96), DTYPE)


def test_a_layout_made_later_is_kept_under_its_own_name():
    portable = int4_linear.layouts_for("triton", codes(128, 128), DTYPE)
    packed = int4_linear.PackedForCuda(portable, Int4Codes, (128, 128), 32)
    made = packed.layout("dense", DTYPE)
    assert isinstance(made, WgmmaInt4)
    assert list(packed.layouts) == ["triton", "wgmma"]
    assert packed.layout("dense", DTYPE) is packed.layout("wgmma", DTYPE) is made


def test_what_a_kernel_cannot_hold_is_asked_once(monkeypatch):
    packed = int4_linear.PackedForCuda(
        int4_linear.layouts_for("triton", codes(40, 96), DTYPE), Int4Codes, (40, 96), 32
    )
    assert packed.layout("wgmma", DTYPE) is None
    assert packed.refused == {"wgmma"}
    monkeypatch.setattr(int4_linear, "make_layout", None)
    assert packed.layout("wgmma", DTYPE) is None
    assert list(packed.layouts) == ["triton"]
