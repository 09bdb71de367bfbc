"""The runtime INT4 layout of the CUDA kernel: packing is exact for any shape, and unpacking is its inverse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.kernels.cuda.int4_layout import interleave_gate_up, pack_int4, unpack_codes, unpack_int4


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 40).map(lambda n: 8 * n),
    group_size=st.sampled_from([32, 64, 128]),
    symmetric=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_unpacking_gives_the_weight_back(
    rows: int, columns: int, group_size: int, symmetric: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = -(-columns // group_size)
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, generator=generator)
    scale = torch.rand(rows, groups, generator=generator).half().float()
    low = None if symmetric else torch.randn(rows, groups, generator=generator).half().float()
    packed = pack_int4(q, scale, low, group_size, torch.float16)
    wide_scale = scale.repeat_interleave(group_size, 1)[:, :columns]
    if low is None:
        expected = (q.float() - 8) * wide_scale
    else:
        expected = q.float() * wide_scale + low.repeat_interleave(group_size, 1)[:, :columns]
    torch.testing.assert_close(unpack_int4(packed), expected, rtol=1e-6, atol=1e-6)
    back = unpack_codes(packed, group_size)
    assert torch.equal(back[0], q)
    assert torch.equal(back[1], scale)
    assert packed.codes.data_ptr() % 16 == 0
    assert packed.codes.stride(1) * 4 % 16 == 0


def test_what_the_layout_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="of 32s"):
        pack_int4(torch.zeros(16, 64, dtype=torch.uint8), torch.ones(16, 4), None, 16, torch.float16)
    with pytest.raises(ValueError, match="of 8s"):
        pack_int4(torch.zeros(16, 60, dtype=torch.uint8), torch.ones(16, 2), None, 32, torch.float16)


def test_interleaving_puts_eight_gate_rows_before_eight_up_rows() -> None:
    gate, up = torch.randn(16, 3), torch.randn(16, 3)
    rows = interleave_gate_up(gate, up).view(2, 2, 8, 3)
    assert torch.equal(rows[:, 0].reshape(16, 3), gate)
    assert torch.equal(rows[:, 1].reshape(16, 3), up)
    with pytest.raises(ValueError, match="eights"):
        interleave_gate_up(torch.zeros(12, 3), torch.zeros(12, 3))


def test_interleaved_weights_unpack_in_their_own_order() -> None:
    q = torch.randint(0, 16, (48, 96), dtype=torch.uint8)
    scale = torch.rand(48, 3).half().float()
    plain = pack_int4(q, scale, None, 32, torch.float16)
    mixed = pack_int4(q, scale, None, 32, torch.float16, interleaved=True)
    assert torch.equal(unpack_int4(mixed), unpack_int4(plain))
    assert not torch.equal(mixed.codes, plain.codes)
