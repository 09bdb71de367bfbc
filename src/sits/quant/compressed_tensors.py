"""compressed-tensors checkpoints (vLLM, SGLang, transformers): INT4 ``pack-quantized`` and FP8 ``float-quantized``.

INT4, per linear: ``weight_packed`` int32 [N, ceil(K / 8)] (codes along K, lowest bits first), ``weight_scale``
[N, G], ``weight_shape`` [2], and ``weight_zero_point`` int32 [ceil(N / 8), G] (packed along N) when asymmetric.
FP8: ``weight`` float8_e4m3fn [N, K] and ``weight_scale`` [N, 1] or [1]. Format reference: the library of that name,
https://github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from sits.errors import InputError
from sits.quant.formats import CheckpointFormat, StoredTensors, WeightCodes, four_bits, need
from sits.quant.fp8 import Fp8Codes
from sits.quant.fp8_checkpoint import read_fp8
from sits.quant.int4 import Int4Codes, group_count
from sits.quant.packing import CODES_PER_WORD, pack_rows, unpack_rows
from sits.quant.precision import Precision


class CompressedTensorsFormat(CheckpointFormat):
    """Reader; also accepts mixed checkpoints (several config groups)."""

    name = "compressed-tensors"

    def __init__(self, config: dict[str, Any]):
        self.group_sizes: list[int] = []
        groups = config.get("config_groups") or {}
        if not groups:
            raise InputError("the compressed-tensors config has no config_groups")
        for group in groups.values():
            self._check(group)

    def _check(self, group: dict[str, Any]) -> None:
        weights = group.get("weights") or {}
        strategy, size = weights.get("strategy"), weights.get("group_size")
        if weights.get("type") == "float":
            if weights.get("num_bits") != 8 or strategy not in ("channel", "tensor"):
                raise InputError(
                    f"compressed-tensors {weights.get('num_bits')}-bit float weights with strategy {strategy!r} are "
                    "not supported",
                    "FP8 with strategy channel or tensor is read",
                )
            return
        four_bits(weights.get("num_bits"), "compressed-tensors")
        if group.get("input_activations"):
            raise InputError("compressed-tensors INT4 weights with quantized activations are not supported")
        if strategy == "group" and size:
            self.group_sizes.append(int(size))
        elif strategy != "channel":
            raise InputError(
                f"compressed-tensors INT4 strategy {strategy!r} is not supported", "Use group or channel"
            )

    def is_quantized(self, module: str, tensors: StoredTensors) -> bool:
        return tensors.has(f"{module}.weight_packed") or tensors.has(f"{module}.weight_scale")

    def shape(self, module: str, tensors: StoredTensors) -> tuple[int, int]:
        if not tensors.has(f"{module}.weight_packed"):
            weight = need(tensors, f"{module}.weight")
            return weight.shape[0], weight.shape[1]
        rows, columns = need(tensors, f"{module}.weight_shape").tolist()
        return int(rows), int(columns)

    def read(self, module: str, tensors: StoredTensors) -> WeightCodes | torch.Tensor:
        if not tensors.has(f"{module}.weight_packed"):
            return read_fp8(module, tensors)
        rows, columns = self.shape(module, tensors)
        packed = need(tensors, f"{module}.weight_packed")
        if packed.shape[0] != rows or packed.shape[1] != -(-columns // CODES_PER_WORD):
            raise InputError(
                f"{module}.weight_packed has shape {list(packed.shape)}, a 4-bit [{rows}, {columns}] weight needs "
                f"[{rows}, {-(-columns // CODES_PER_WORD)}]"
            )
        scale = need(tensors, f"{module}.weight_scale")
        group_size = self._group_size(module, columns, scale.shape[1])
        q = unpack_rows(packed, columns)
        zero: torch.Tensor | float = 8.0
        if tensors.has(f"{module}.weight_zero_point"):
            zero = unpack_zero_points(tensors.get(f"{module}.weight_zero_point"), rows)
        codes = Int4Codes.from_zero_points(q, scale, zero, group_size)
        if tensors.has(f"{module}.weight_g_idx"):
            return in_group_order(codes, tensors.get(f"{module}.weight_g_idx"))
        return codes

    def _group_size(self, module: str, columns: int, groups: int) -> int:
        if groups == 1:
            return columns
        for size in self.group_sizes:
            if group_count(columns, size) == groups:
                return size
        raise InputError(
            f"{module}.weight_scale has {groups} groups for {columns} inputs; the config declares group sizes "
            f"{self.group_sizes}"
        )


def unpack_zero_points(stored: torch.Tensor, rows: int) -> torch.Tensor:
    """Zero points 0..15 [N, G] from packed int32 [ceil(N / 8), G] or signed int8 [N, G]."""
    if stored.dtype == torch.int32:
        return unpack_rows(stored.T.contiguous(), rows).T
    return stored.to(torch.int16) + 8


def in_group_order(codes: Int4Codes, group_index: torch.Tensor) -> Int4Codes | torch.Tensor:
    """``codes`` itself when column k is in group k // g; else the dense weight, each column by its own group."""
    columns, index = codes.shape[1], group_index.long()
    if bool((index < 0).all()) or torch.equal(index, torch.arange(columns, device=index.device) // codes.group_size):
        return codes
    if int(index.min()) < 0 or int(index.max()) >= codes.scale.shape[1]:
        raise InputError("the checkpoint's g_idx names groups that have no scale")
    return codes.q.float() * codes.scale[:, index] + codes.minimum[:, index]


def int4_tensors(codes: Int4Codes, scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of one INT4 linear by suffix. Raises ``InputError`` for float minimums (not expressible)."""
    rows, columns = codes.shape
    zero = codes.zero_points()
    if zero is None:
        raise InputError(
            "compressed-tensors stores integer zero points; this weight has float minimums",
            "Quantize with symmetric or asym instead of float",
        )
    tensors = {
        "weight_packed": pack_rows(codes.q),
        "weight_scale": stored_exactly(codes.scale, scale_dtype),
        "weight_shape": torch.tensor([rows, columns], dtype=torch.int64),
    }
    if not codes.is_symmetric():
        tensors["weight_zero_point"] = pack_rows(zero.T.contiguous()).T.contiguous()
    return tensors


def fp8_tensors(codes: Fp8Codes, scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of one FP8 linear by suffix."""
    return {"weight": codes.q.contiguous(), "weight_scale": stored_exactly(codes.scale.unsqueeze(1), scale_dtype)}


def stored_exactly(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``scale`` in its storage dtype. The codes were chosen for these very values: rounding them now is a fault."""
    stored = scale.to(dtype)
    if not torch.equal(stored.float(), scale):
        raise ValueError(f"scales are not exact in {dtype}: quantize with scale_dtype={dtype}")
    return stored.contiguous()


def quantization_config(groups: dict[Precision, list[str]], ignore: list[str]) -> dict[str, Any]:
    """The ``quantization_config`` of config.json: modules by precision, and linears left dense.

    A single precision targets every ``Linear`` but the ignored ones; several list their modules by exact name.
    """
    if any(precision.kind == "dense" for precision in groups):
        raise ValueError("dense modules belong into `ignore`")
    single = len(groups) == 1
    entries = {}
    for number, (precision, modules) in enumerate(groups.items()):
        targets = ["Linear"] if single else list(modules)
        entries[f"group_{number}"] = {"targets": targets, **_scheme(precision)}
    formats = {entry["format"] for entry in entries.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": entries,
        "ignore": list(ignore),
        "kv_cache_scheme": None,
    }


def _scheme(precision: Precision) -> dict[str, Any]:
    common = {"dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax"}
    if precision.kind == "fp8":
        shape = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None}
        return {
            "format": "float-quantized",
            "weights": {**shape, "strategy": "channel", **common},
            "input_activations": {**shape, "strategy": "token", **common, "dynamic": True, "observer": None},
            "output_activations": None,
        }
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": precision.zero == "symmetric",
        "strategy": "group",
        "group_size": precision.group_size,
    }
    return {
        "format": "pack-quantized",
        "weights": {**weights, **common},
        "input_activations": None,
        "output_activations": None,
    }
