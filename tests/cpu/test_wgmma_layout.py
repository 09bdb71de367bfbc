"""The wgmma layout: nothing is lost, nibbles lie where the instruction wants them, launch shapes fit the device."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.kernels.cuda import small
from sits.kernels.cuda.wgmma_layout import (
    CODE_BYTES,
    WgmmaInt4,
    can_pack,
    e4m3_order,
    interleave_gate_up,
    pack,
    unpack,
)
from sits.kernels.cuda.wgmma_linear import wgmma_linear
from sits.kernels.cuda.wgmma_shape import MAX_NORM_ROWS, default_shape, fill_stages


def random_weight(
    rows: int, columns: int, group: int, symmetric: bool, dtype: torch.dtype, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, WgmmaInt4]:
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    groups = -(-columns // group)
    magnitude = torch.exp2(-torch.randint(0, 14, (rows, 1)).float())  # rows of very different size
    scale = ((torch.rand(rows, groups) + 0.5) * magnitude).to(dtype).float()
    minimum = None if symmetric else (-scale * (torch.rand(rows, groups) * 7 + 1)).to(dtype).float()
    return q, scale, minimum, pack(q, scale, minimum, group, dtype, interleaved)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 9),
    st.sampled_from([32, 64, 128]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_unpack_gives_back_what_was_packed(
    eights: int, chunks: int, group: int, symmetric: bool, interleaved: bool, dtype: torch.dtype
) -> None:
    rows = eights * (16 if interleaved else 8)
    q, scale, minimum, weight = random_weight(rows, chunks * 64, group, symmetric, dtype, interleaved)
    codes, scales, minimums = unpack(weight, group)
    assert torch.equal(codes, q)
    torch.testing.assert_close(scales[:, : scale.shape[1]], scale, rtol=0, atol=0)  # powers of two: exact
    if minimum is not None:
        torch.testing.assert_close(minimums[:, : scale.shape[1]], minimum, rtol=2e-3, atol=0)


def test_nibbles_lie_in_the_fragment_of_the_instruction() -> None:
    """By the definition of the A fragment of a 64 x 16 product (thread, register, half -> row, k), one by one."""
    q, _, _, weight = random_weight(64, 256, 32, True, torch.float16)
    for chunk in range(4):
        words = weight.blocks[0, chunk, :CODE_BYTES].contiguous().view(torch.int32).view(128, 4)
        for thread in range(0, 128, 5):
            w, g, t = thread // 32, thread % 32 // 4, thread % 4
            for step in range(4):
                word = int(words[thread, step]) & 0xFFFFFFFF
                for register in range(4):
                    row = 16 * w + g + 8 * (register % 2)
                    for half in range(2):
                        k = chunk * 64 + step * 16 + 2 * t + half + 8 * (register // 2)
                        assert word >> (4 * register + 16 * half) & 15 == q[row, k]


@pytest.mark.parametrize(("dtype", "low_bit", "bits"), [(torch.float16, -24, 11), (torch.bfloat16, -133, 8)])
def test_subnormal_form_is_exact_to_one_rounding(dtype: torch.dtype, low_bit: int, bits: int) -> None:
    """What the kernel computes: a nibble read as a subnormal, times the scale, plus the minimum, rounded once."""
    q, scale, _, weight = random_weight(64, 64, 32, True, dtype)
    stored = weight.blocks[0, 0, CODE_BYTES:].contiguous().view(dtype).view(4, 8, 2, 2).double()
    stored = stored.permute(0, 2, 1, 3).reshape(64, 2)
    high = (torch.arange(64) % 16 >= 8).unsqueeze(1)
    raw = torch.where(high, q.to(torch.int16) << 4, q.to(torch.int16)).view(dtype).double()
    assert torch.equal(raw, q.double() * torch.where(high, 2.0 ** (low_bit + 4), 2.0**low_bit).double())
    eight = torch.where(high, 0x80, 0x8).to(torch.int16).view(dtype).double()
    minimum = (-eight * stored).to(dtype).double()
    spread = lambda values: values.repeat_interleave(32, 1)  # noqa: E731
    made = (raw * spread(stored) + spread(minimum)).to(dtype).double() * weight.row_factor.double()[:, None]
    wanted = (q.double() - 8) * spread(scale.double())
    assert ((made - wanted).abs() <= wanted.abs() * 2.0**-bits).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["scale", "minimum"])
def test_a_row_that_is_not_finite_is_nan_and_spoils_no_other(bad: float, where: str) -> None:
    q, scale, minimum, clean = random_weight(128, 128, 32, False, torch.float16)
    assert minimum is not None
    (scale if where == "scale" else minimum)[5, 2] = bad
    weight = pack(q, scale, minimum, 32, torch.float16)
    rows = torch.arange(128) != 5
    assert weight.row_factor[5].isnan()  # which every kernel multiplies the row by
    assert all(part[5].isnan().all() for part in unpack(weight)[1:])
    assert torch.equal(weight.row_factor[rows], clean.row_factor[rows])
    for spoilt, whole in zip(unpack(weight), unpack(clean)):
        assert torch.equal(spoilt[rows], whole[rows])


def test_rows_of_zero_scale_and_padding_are_zero() -> None:
    q = torch.randint(0, 16, (72, 64), dtype=torch.uint8)
    weight = pack(q, torch.zeros(72, 2), None, 32, torch.float16)
    assert weight.blocks.shape[:2] == (2, 4)
    assert not weight.blocks[:, :, CODE_BYTES:].any()
    assert torch.equal(weight.row_factor, torch.ones(128))


@pytest.mark.parametrize(("rows", "columns", "group"), [(60, 64, 32), (64, 72, 32), (64, 64, 48)])
def test_shapes_it_cannot_hold_are_refused(rows: int, columns: int, group: int) -> None:
    assert not can_pack(rows, columns, group)
    with pytest.raises(ValueError, match="groups of"):
        pack(torch.zeros(rows, columns, dtype=torch.uint8), torch.ones(rows, 2), None, group, torch.float16)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 600), st.integers(1, 1000), st.integers(1, 500), st.booleans(), st.booleans())
def test_default_shapes_fit_the_device(batch: int, eights: int, chunks: int, symmetric: bool, e4m3: bool) -> None:
    shape = default_shape(batch, eights * 8, chunks * 64, symmetric, e4m3=e4m3)
    assert shape.e4m3 == e4m3
    assert shape.chunks % 2 == 0 or not e4m3
    assert shape.columns % 8 == 0
    assert shape.columns <= 256
    assert shape.columns >= min(batch, 128)
    assert shape.row_groups in (1, 2)
    assert shape.stages >= max(2, shape.k_groups + (shape.late or shape.chunks == 1))  # or they wait for themselves
    assert shape.shared_bytes(symmetric) <= 227 * 1024
    assert shape.threads <= 1024
    assert 4 % shape.chunks == 0  # the layout pads K to four chunks


def test_shapes_without_stages_enough_for_their_warpgroups_are_refused() -> None:
    assert fill_stages(64, 2, 4, 2, 2).stages >= 4
    with pytest.raises(ValueError, match="shared memory"):
        fill_stages(64, 2, 4, 2, 4)  # two would fit, and four warpgroups take turns
    with pytest.raises(ValueError, match="shared memory"):
        fill_stages(256, 2, 2, 1, 2)


def test_rows_of_another_size_or_type_are_refused() -> None:
    weight = random_weight(64, 128, 32, True, torch.float16)[3]
    x, y = torch.zeros(2, 128, dtype=torch.float16), torch.zeros(2, 64, dtype=torch.float16)
    for wrong in ((x[:, :64], y), (x.bfloat16(), y), (x, y.bfloat16())):
        with pytest.raises(ValueError, match="128 inputs packed for"):
            wgmma_linear(weight, *wrong)
    many = torch.zeros(MAX_NORM_ROWS + 1, 128, dtype=torch.float16)
    with pytest.raises(ValueError, match="513 rows"):
        wgmma_linear(weight, many, many[:, :64].contiguous(), squares_in=torch.zeros(MAX_NORM_ROWS + 1, 4))


def test_a_matrix_that_a_graph_writes_is_kept_when_the_scratch_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Room:
        """A tensor on a GPU."""

        dtype, device, is_cuda = torch.float16, torch.device("cuda"), True

        def __init__(self, size: int, **_: object):
            self.size = size

        def numel(self) -> int:
            return self.size

        def __getitem__(self, _: slice) -> Room:
            return self

        def view(self, *_: int) -> Room:
            return self

    capturing = [False]
    monkeypatch.setattr(small.torch, "empty", Room)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    scratch = small.Scratch(torch.float16, torch.device("cuda"))
    eager = weakref.ref(scratch.matrix(2, 8))
    scratch.matrix(2, 16)
    assert eager() is None
    capturing[0] = True
    captured = weakref.ref(scratch.matrix(2, 8))
    capturing[0] = False
    scratch.matrix(4, 16)
    assert captured() is not None


def test_interleaving_puts_eight_gate_rows_before_eight_up_rows() -> None:
    gate, up = torch.randn(16, 3), torch.randn(16, 3)
    rows = interleave_gate_up(gate, up).view(2, 2, 8, 3)
    assert torch.equal(rows[:, 0].reshape(16, 3), gate)
    assert torch.equal(rows[:, 1].reshape(16, 3), up)
    with pytest.raises(ValueError, match="eights"):
        interleave_gate_up(torch.zeros(12, 3), torch.zeros(12, 3))


def test_rows_in_e4m3_order_meet_the_codes_that_a_lane_holds() -> None:
    """Fragments of 32 k in 8 bits, made of two words as ``wgmma_e4m3.cuh`` makes them, times rows in that order."""
    q, _, _, weight = random_weight(64, 64, 32, True, torch.float16)
    words = weight.blocks[0, 0, :CODE_BYTES].contiguous().view(torch.int32).view(4, 8, 4, 4)  # warp, g, t, word
    fragment = torch.zeros(64, 64, dtype=torch.int64)  # as the instruction sees A: row, place in 64
    for warp in range(4):
        for g in range(8):
            for t in range(4):
                for word in range(4):
                    nibbles = [
                        (int(words[warp, g, t, word]) >> shift) & 15 for shift in (0, 16, 8, 24, 4, 20, 12, 28)
                    ]
                    place = word * 16 + 4 * t
                    fragment[warp * 16 + g, place : place + 4] = torch.tensor(nibbles[:4])
                    fragment[warp * 16 + 8 + g, place : place + 4] = torch.tensor(nibbles[4:])
    x = torch.randint(-9, 9, (5, 64))
    assert torch.equal(e4m3_order(x) @ fragment.T, x @ q.long().T)
