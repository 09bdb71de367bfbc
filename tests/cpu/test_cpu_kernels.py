"""The CPU kernels, PyTorch and native, against the plain reference."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sits.kernels import registry
from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cpu.native import build
from sits.kernels.cpu.native.weights import pack_nibbles, unpack_nibbles
from sits.quant.int4 import Int4Codes
from sits.quant.int4_linear import Int4Weight
from sits.quant.linear import DenseWeight

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def implementation(operator: str, name: str):
    for entry in registry.implementations(operator, "cpu"):
        if entry.name == name:
            return entry
    raise AssertionError(f"{name} is not registered for {operator}")


@pytest.fixture(params=["cpu", "native"])
def kind(request):
    if request.param == "native" and build.library() is None:
        pytest.skip(f"no native kernels: {build.unavailable_because()}")
    return request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request):
    return request.param


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(ours: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(ours.float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("width", [64, 100])  # 100: not a whole number of vectors
def test_norms_and_activation(kind, dtype, tokens, width):
    x, residual = random(tokens, width, dtype=dtype), random(tokens, width, dtype=dtype, seed=1)
    weight = random(width, dtype=dtype, seed=2)
    for eps in (1e-5, 0.5):
        expected = implementation("rms_norm", "reference").function(x, weight, eps)
        close(implementation("rms_norm", kind).function(x.clone(), weight, eps), expected, dtype)
        normed, summed = implementation("add_rms_norm", "reference").function(x, residual, weight, eps)
        ours = implementation("add_rms_norm", kind).function(x.clone(), residual.clone(), weight, eps)
        close(ours[0], normed, dtype)
        close(ours[1], summed, dtype)
    gate_up = 8 * random(tokens, 2 * width, dtype=dtype)
    gate_up[0, 0], gate_up[0, 1] = 200.0, -200.0  # exp overflows without care
    expected = implementation("silu_mul", "reference").function(gate_up)
    close(implementation("silu_mul", kind).function(gate_up.clone()), expected, dtype)


HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 32, 4


def ragged_batch(decodes: list[int], prompts: list[tuple[int, int]]) -> AttentionBatch:
    """Decode rows with these contexts, then prompt chunks (query, context); blocks scattered or in runs by turns."""
    lens = [(1, context) for context in decodes] + prompts
    counts = [-(-context // BLOCK) for _, context in lens]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).tolist()
    blocks, positions, slots = [], [], []
    for row, ((query, context), count) in enumerate(zip(lens, counts)):
        mine, order = order[:count], order[count:]
        mine = sorted(mine) if row % 2 else mine
        blocks.append(mine)
        for position in range(context - query, context):
            positions.append(position)
            slots.append(mine[position // BLOCK] * BLOCK + position % BLOCK)
    widest = max(counts)
    table = torch.tensor([mine + [0] * (widest - len(mine)) for mine in blocks], dtype=torch.int32)
    queries = [query for query, _ in lens]
    return AttentionBatch(
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        query_start=torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32),
        context_lens=torch.tensor([context for _, context in lens], dtype=torch.int32),
        block_tables=table,
        block_size=BLOCK,
        num_decodes=len(decodes),
        query_lens_host=queries,
        context_lens_host=[context for _, context in lens],
        blocks_host=blocks,
    )


BATCHES = {
    "decode": ([1, 5, 17, 70, 130], []),
    "prompts": ([], [(7, 7), (5, 20), (1, 1)]),
    "both": ([9, 66], [(12, 12), (3, 30)]),
}


@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize("window", [0, 6])
def test_rotary_write_and_attention(kind, dtype, case, window):
    batch = ragged_batch(*BATCHES[case])
    tokens = len(batch.positions)
    blocks = sum(len(mine) for mine in batch.blocks_host)
    qkv = random(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM, dtype=dtype)
    cos_sin = torch.cat((random(256, 16).cos(), random(256, 16).sin()), dim=-1)
    results = []
    for name in ("reference", kind):
        k = random(blocks, BLOCK, KV_HEADS, HEAD_DIM, dtype=dtype, seed=4)
        v = random(blocks, BLOCK, KV_HEADS, HEAD_DIM, dtype=dtype, seed=5)
        batch.plan = None
        arguments = (cos_sin, k, v, batch, HEADS, KV_HEADS, HEAD_DIM)
        q = implementation("rope_kv_write", name).function(qkv.clone(), *arguments)
        out = implementation("attention", name).function(q, k, v, batch, HEAD_DIM**-0.5, window)
        results.append((q, k, v, out))
    for expected, ours in zip(*results):
        close(ours, expected, dtype)


def test_slots_of_minus_one_are_not_written(kind):
    batch = ragged_batch([5, 9], [])
    kept = int(batch.slots[1])
    batch.slots[0] = -1
    before = random(5, BLOCK, KV_HEADS, HEAD_DIM)
    k, v = before.clone(), before.clone()
    qkv = random(2, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    cos_sin = torch.cat((torch.ones(16, 16), torch.zeros(16, 16)), dim=-1)
    implementation("rope_kv_write", kind).function(qkv, cos_sin, k, v, batch, HEADS, KV_HEADS, HEAD_DIM)
    changed = (k != before).flatten(2).any(-1).flatten().nonzero().flatten().tolist()
    assert changed == [kept]


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 8, 9, 13, 16, 17, 40])
@pytest.mark.parametrize(("rows", "columns"), [(37, 64), (64, 96), (6, 32)])
def test_linears(kind, dtype, tokens, rows, columns):
    x, dense = random(tokens, columns, dtype=dtype), random(rows, columns, seed=1) * columns**-0.5
    bias = random(rows, dtype=dtype, seed=2)
    weights = [DenseWeight(dense.to(dtype), bias)]
    if kind == "native":
        weights += [Int4Weight(Int4Codes.from_dense(dense, 32, "float"), bias)]
    for weight in weights:
        full = weight.dequantize().float()
        entry = implementation(weight.operator, kind)
        entry.prepare(weight)
        expected = (x.double() @ full.double().T + bias.double()).float()
        close(entry.function(x, weight, bias), expected, dtype)
        close(entry.function(x, weight, None), expected - bias.float(), dtype)


@pytest.mark.parametrize("group_size", [32, 64, 96])
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.float32])
def test_native_int4_gives_its_codes_back(group_size, scale_dtype):
    if build.library() is None:
        pytest.skip(f"no native kernels: {build.unavailable_because()}")
    codes = Int4Codes.from_dense(random(10, 192), group_size, "float", scale_dtype)
    weight = Int4Weight(codes).prepack()
    assert weight.kernel == "native"
    again = weight.to_codes()
    assert torch.equal(again.q, codes.q)
    assert torch.equal(again.scale, codes.scale)
    assert torch.equal(again.minimum, codes.minimum)
    close(weight.apply(random(3, 192)), random(3, 192) @ codes.dequantize().T, torch.float32)


def test_nibbles_round_trip():
    q = torch.randint(0, 16, (5, 96), dtype=torch.uint8)
    assert torch.equal(unpack_nibbles(pack_nibbles(q)), q)


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"SITS_NATIVE": "0"}, "switched off"), ({"PATH": "/nowhere", "CC": "none"}, "no C compiler")],
)
def test_without_native_kernels_the_reason_is_told_and_pytorch_runs(changes, text, tmp_path):
    code = (
        "from sits.kernels.cpu.native import build; from sits.models.loading import load_model\n"
        "print(build.unavailable_because()); m = load_model('synthetic:tiny', device='cpu').model\n"
        "print(m.ops.chosen['attention'], m.layers[0].qkv_proj.kernel)"
    )
    environment = {**os.environ, "SITS_CACHE": str(tmp_path), **changes}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    reason, chosen = done.stdout.splitlines()
    assert text in reason
    assert chosen == "cpu cpu"


def test_a_compiler_that_fails_is_not_fatal(tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'error: no such instruction' >&2\nexit 1\n")
    broken.chmod(0o755)
    code = "from sits.kernels.cpu.native import build; print(build.library(), build.unavailable_because())"
    environment = {**os.environ, "SITS_CACHE": str(tmp_path), "CC": str(broken)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("None cc failed: error: no such instruction")
    assert not list((tmp_path / "native").iterdir())
