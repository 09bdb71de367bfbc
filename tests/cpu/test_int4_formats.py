"""INT4 and FP8 checkpoint readers against scalar definitions of each format and the compressed-tensors library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.errors import InputError
from sits.quant.awq import pack_outputs
from sits.quant.compressed_tensors import fp8_tensors, int4_tensors, quantization_config
from sits.quant.formats import format_of
from sits.quant.fp8 import Fp8Codes
from sits.quant.int4 import Int4Codes
from sits.quant.packing import pack_rows
from sits.quant.precision import parse_precision


class Store(dict):
    """A dict of tensors as the reader sees a checkpoint."""

    has = dict.__contains__

    def get(self, name: str) -> torch.Tensor:
        return self[name]


def stored(module: str, tensors: dict[str, torch.Tensor]) -> Store:
    return Store({f"{module}.{suffix}": tensor for suffix, tensor in tensors.items()})


def random_parts(rows: int, columns: int, group: int, seed: int = 0):
    """Codes, scales of float16 and zero points."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-columns // group)
    q = torch.randint(0, 16, (rows, columns), generator=generator).to(torch.uint8)
    scale = (torch.rand(rows, groups, generator=generator) + 0.1).half()
    zero = torch.randint(0, 16, (rows, groups), generator=generator).to(torch.uint8)
    zero[0, 0], zero[-1, -1] = 0, 15  # the ends of the range are where readers go wrong
    return q, scale, zero


def scalar_weight(q, scale, zero, group):
    """(q - zero) * scale, one element at a time."""
    rows, columns = q.shape
    return torch.tensor(
        [
            [(int(q[n, k]) - int(zero[n, k // group])) * float(scale[n, k // group]) for k in range(columns)]
            for n in range(rows)
        ]
    )


def scalar_pack(values: list[int]) -> int:
    """Eight nibbles, first in the lowest bits, as a signed 32-bit number."""
    word = sum(value << (4 * position) for position, value in enumerate(values))
    return word - (1 << 32) if word >= 1 << 31 else word


def gptq_tensors(q, scale, zero, version: int) -> dict[str, torch.Tensor]:
    rows, columns = q.shape
    groups = scale.shape[1]
    qweight = [[scalar_pack(q[n, k : k + 8].tolist()) for n in range(rows)] for k in range(0, columns, 8)]
    shifted = [[(int(zero[n, g]) - (version == 1)) % 16 for n in range(rows)] for g in range(groups)]
    qzeros = [[scalar_pack(row[n : n + 8]) for n in range(0, rows, 8)] for row in shifted]
    return {
        "qweight": torch.tensor(qweight, dtype=torch.int32),
        "qzeros": torch.tensor(qzeros, dtype=torch.int32),
        "scales": scale.T.contiguous(),
        "g_idx": torch.arange(columns, dtype=torch.int32) // (columns // groups),
    }


@pytest.mark.parametrize("version", [1, 2])
def test_gptq_zero_points_of_both_versions(version):
    q, scale, zero = random_parts(16, 64, 32)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    config["checkpoint_format"] = "gptq" if version == 1 else "gptq_v2"
    codes = format_of(config).read("m", stored("m", gptq_tensors(q, scale, zero, version)))
    assert isinstance(codes, Int4Codes)
    assert torch.equal(codes.zero_points(), zero)
    torch.testing.assert_close(codes.dequantize(), scalar_weight(q, scale, zero, 32), rtol=0, atol=0)


def test_gptq_activation_order_is_kept_dense_and_right():
    q, scale, zero = random_parts(8, 64, 32)
    tensors = gptq_tensors(q, scale, zero, 1)
    order = torch.randperm(64)
    tensors["g_idx"] = tensors["g_idx"][order]
    weight = format_of({"quant_method": "gptq", "bits": 4, "group_size": 32}).read("m", stored("m", tensors))
    assert isinstance(weight, torch.Tensor)
    group = tensors["g_idx"].long()
    expected = (q.float() - zero.float()[:, group]) * scale.float()[:, group]
    torch.testing.assert_close(weight, expected, rtol=0, atol=1e-6)


def test_gptq_one_group_for_the_whole_input():
    q, scale, zero = random_parts(8, 64, 64)
    config = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    codes = format_of(config).read("m", stored("m", gptq_tensors(q, scale, zero, 1)))
    assert codes.group_size == 64
    torch.testing.assert_close(codes.dequantize(), scalar_weight(q, scale, zero, 64), rtol=0, atol=0)


def test_awq_interleaved_outputs():
    q, scale, zero = random_parts(16, 64, 32)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    qweight = [[scalar_pack([int(q[n + o, k]) for o in order]) for n in (0, 8)] for k in range(64)]
    qzeros = [[scalar_pack([int(zero[n + o, g]) for o in order]) for n in (0, 8)] for g in range(2)]
    tensors = {
        "qweight": torch.tensor(qweight, dtype=torch.int32),
        "qzeros": torch.tensor(qzeros, dtype=torch.int32),
        "scales": scale.T.contiguous(),
    }
    assert torch.equal(pack_outputs(q.T.contiguous()), tensors["qweight"])
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    reader, store = format_of(config), stored("m", tensors)
    assert reader.shape("m", store) == (16, 64)
    codes = reader.read("m", store)
    torch.testing.assert_close(codes.dequantize(), scalar_weight(q, scale, zero, 32), rtol=0, atol=0)


def library_weight(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the compressed-tensors library decompresses to."""
    group = config["config_groups"]["group_0"]
    scheme = QuantizationScheme(**{key: group[key] for key in ("targets", "weights", "input_activations", "format")})
    return BaseCompressor.get_value_from_registry(group["format"]).decompress(dict(tensors), scheme)["weight"]


@pytest.mark.parametrize("name", ["int4-g32", "int4-g64-asym", "int4-g128"])
@given(shape=st.tuples(st.integers(1, 20), st.integers(1, 4)), seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_int4_tensors_are_what_the_library_reads_and_what_we_read(name, shape, seed):
    precision = parse_precision(name)
    rows, columns = shape[0], shape[1] * precision.group_size
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    codes = Int4Codes.from_dense(weight, precision.group_size, precision.zero)
    tensors = int4_tensors(codes, torch.float16)
    config = quantization_config({precision: ["m"]}, ["lm_head"])
    assert torch.equal(library_weight(config, tensors), codes.dequantize(torch.float16))
    back = format_of(config).read("m", stored("m", tensors))
    assert torch.equal(back.q, codes.q)
    assert torch.equal(back.dequantize(), codes.dequantize())


def test_fp8_tensors_are_what_the_library_reads_and_what_we_read():
    precision = parse_precision("fp8")
    codes = Fp8Codes.from_dense(torch.randn(24, 72), torch.bfloat16)
    tensors = fp8_tensors(codes, torch.bfloat16)
    config = quantization_config({precision: ["m"]}, ["lm_head"])
    assert torch.equal(library_weight(config, tensors), codes.dequantize(torch.bfloat16))
    back = format_of(config).read("m", stored("m", tensors))
    assert torch.equal(back.dequantize(), codes.dequantize())


def test_fp8_scale_of_the_whole_tensor():
    weight = torch.randn(4, 8).to(torch.float8_e4m3fn)
    store = stored("m", {"weight": weight, "weight_scale": torch.tensor(0.5), "input_scale": torch.tensor(1.0)})
    codes = format_of({"quant_method": "fp8"}).read("m", store)
    assert torch.equal(codes.dequantize(), weight.float() * 0.5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "compressed-tensors, gptq, awq"),
        ({}, "without a name"),
        ({"quant_method": "gptq", "bits": 8}, "8-bit"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "block"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
    ],
)
def test_unsupported_formats_say_what_is_supported(config, message):
    with pytest.raises(InputError, match=message):
        format_of(config)


def test_damaged_checkpoints_name_the_tensor():
    codes = Int4Codes.from_dense(torch.randn(8, 64))
    precision = parse_precision("int4-g32")
    reader = format_of(quantization_config({precision: ["m"]}, []))
    tensors = int4_tensors(codes, torch.float16)
    with pytest.raises(InputError, match=r"m\.weight_scale"):
        reader.read("m", stored("m", {key: value for key, value in tensors.items() if key != "weight_scale"}))
    with pytest.raises(InputError, match="7 groups for 64 inputs"):
        reader.read("m", stored("m", {**tensors, "weight_scale": torch.ones(8, 7)}))
    with pytest.raises(InputError, match="weight_packed has shape"):
        reader.read("m", stored("m", {**tensors, "weight_packed": pack_rows(codes.q)[:, :-1]}))


def test_float_minimums_cannot_be_stored_as_compressed_tensors():
    with pytest.raises(InputError, match="integer zero points"):
        int4_tensors(Int4Codes.from_dense(torch.randn(4, 32), 32, "float"), torch.float16)
