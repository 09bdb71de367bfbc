"""``sits quantize``: any readable model to a compressed-tensors checkpoint, one tensor at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import sits
from sits.errors import InputError
from sits.models.export import config_json, tokenizer_files
from sits.models.loading.load import DTYPES, choose_device, open_source
from sits.models.loading.resolve import ModelLocation, resolve
from sits.models.loading.safetensors_source import SafetensorsSource
from sits.models.loading.source import WeightSource
from sits.models.tokenizer import load_tokenizer
from sits.quant.checkpoint import CheckpointWriter
from sits.quant.compressed_tensors import fp8_tensors, int4_tensors, quantization_config
from sits.quant.convert import quantize
from sits.quant.formats import WeightCodes
from sits.quant.fp8 import Fp8Codes
from sits.quant.int4 import Int4Codes
from sits.quant.plan import PrecisionPlan
from sits.quant.precision import Precision

LINEAR_LEAVES = frozenset(
    (
        "q_proj",
        "k_proj",
        "v_proj",
        "qkv_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "gate_up_proj",
        "down_proj",
        "lm_head",
    )
)
#: Weights of a folder's towers and routers are copied as they are.
NOT_LANGUAGE = ("vision", "visual", "audio")
COPIED_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".md")
REPORT_FILE = "sits_quantization.json"
Progress = Callable[[int, int, str], None]  # done, total, tensor name


@dataclass
class LayerReport:
    """One quantised linear: its precision and ||w - w_q|| / ||w||."""

    name: str
    precision: str
    relative_error: float
    weights: int


@dataclass
class QuantizationReport:
    """What was written. ``bytes_before`` counts the same tensors in the checkpoint's 16-bit dtype."""

    model: str
    source: dict[str, str]
    sits_version: str
    method: str
    dtype: str
    default: str
    bytes_before: int = 0
    bytes_after: int = 0
    quantized_weights: int = 0
    all_weights: int = 0
    layers: list[LayerReport] = field(default_factory=list)

    def mean_error(self) -> float:
        """Relative error over all quantised linears, each weight counted once (root of the mean square)."""
        total = sum(layer.weights for layer in self.layers)
        if not total:
            return 0.0
        return math.sqrt(sum(layer.relative_error**2 * layer.weights for layer in self.layers) / total)


def quantize_model(
    name: str,
    plan: PrecisionPlan,
    out: str | Path,
    dtype: str = "auto",
    progress: Progress | None = None,
    device: str = "auto",
) -> QuantizationReport:
    """Write ``out``, a folder that transformers, vLLM and SITS load.

    ``dtype`` is that of the tensors left dense: ``auto`` keeps a 16-bit model's own and makes others float16.
    ``device`` does the arithmetic (``auto``: a CUDA device if there is one). Every user mistake is an ``InputError``;
    nothing is written in that case.
    """
    check_writable(plan)
    location = resolve(name)
    source, config = open_source(location)
    names = tensor_names(source)
    linears = {tensor.removesuffix(".weight"): None for tensor in names if is_linear(tensor, source)}
    plan.check_names([*linears, "lm_head"])
    stored = choose_stored_dtype(dtype, source)
    target = choose_device(device)
    report = QuantizationReport(
        name,
        source.weight_hash(),
        sits.__version__,
        plan.method,
        str(stored).removeprefix("torch."),
        str(plan.default),
    )
    groups: dict[Precision, list[str]] = {}
    ignored = ["lm_head"]
    with CheckpointWriter(out) as writer:
        for done, tensor in enumerate(names):
            if progress:
                progress(done, len(names), tensor)
            module = tensor.removesuffix(".weight")
            precision = plan.precision_of(module) if module in linears else None
            if precision is None or precision.kind == "dense":
                _copy_dense(source, tensor, stored, writer, report)
                if module not in ignored and _is_matrix(source, tensor) and "embed" not in tensor:
                    ignored.append(module)  # every dense Linear must be named, or a loader looks for its codes
                continue
            groups.setdefault(precision, []).append(module)
            if module == "lm_head":
                ignored.remove("lm_head")
            _write_quantized(source, tensor, precision, plan.method, stored, target, writer, report)
        if not groups:
            raise InputError("the plan leaves every linear dense: there is nothing to quantize")
        _write_files(location, source, config, groups, ignored, report, writer)
        writer.write_json(REPORT_FILE, {**asdict(report), "mean_relative_error": report.mean_error()})
        writer.write_text("sits_plan.yaml", plan.to_yaml(f"applied to {name} by sits {sits.__version__}"))
    if progress:
        progress(len(names), len(names), "done")
    return report


def check_writable(plan: PrecisionPlan) -> None:
    """compressed-tensors stores integer zero points: refuse float minimums before any work is done."""
    for precision in (plan.default, *plan.layers.values()):
        if precision.zero == "float":
            raise InputError(
                f"{precision} cannot be written: compressed-tensors checkpoints have integer zero points",
                f"Use int4-g{precision.group_size} or int4-g{precision.group_size}-asym",
            )


def tensor_names(source: WeightSource) -> list[str]:
    """Every tensor, ``module.weight`` for quantised modules too. ``InputError`` for synthetic models."""
    names = getattr(source, "names", None)
    if names is None:
        raise InputError(f"{source.name} has no checkpoint to convert", "Give a folder, a .gguf file or a model name")
    return names()


def is_linear(tensor: str, source: WeightSource) -> bool:
    """Whether a tensor is the matrix of a linear of the language model that may be quantised."""
    module, _, kind = tensor.rpartition(".")
    wanted = kind == "weight" and module.rsplit(".", 1)[-1] in LINEAR_LEAVES
    return wanted and _is_matrix(source, tensor) and not any(part in module for part in NOT_LANGUAGE)


def _is_matrix(source: WeightSource, tensor: str) -> bool:
    shape = source.shape(tensor)
    return tensor.endswith(".weight") and shape is not None and len(shape) == 2


def choose_stored_dtype(dtype: str, source: WeightSource) -> torch.dtype:
    """dtype of dense tensors and of scales: 16 bits, as runtimes for INT4 and FP8 expect."""
    if dtype != "auto":
        chosen = DTYPES.get(dtype)
        if chosen not in (torch.float16, torch.bfloat16):
            raise InputError(f"dtype {dtype!r} is not possible", "Use auto, float16 or bfloat16")
        return chosen
    if isinstance(source, SafetensorsSource):
        own = {source.tensor(name).dtype for name in source.names() if "norm" in name}
        if own == {torch.bfloat16}:
            return torch.bfloat16
    return torch.float16


def _read(source: WeightSource, tensor: str, device: torch.device | str = "cpu") -> torch.Tensor:
    shape = source.shape(tensor)
    assert shape is not None
    out = torch.empty(shape, dtype=torch.float32, device=device)
    source.read_checked(tensor, out)
    return out


def _copy_dense(
    source: WeightSource, tensor: str, dtype: torch.dtype, writer: CheckpointWriter, report: QuantizationReport
) -> None:
    value = _read(source, tensor)
    stored = value.to(dtype)
    if bool(torch.isinf(stored).any()) and not bool(torch.isinf(value).any()):
        raise InputError(f"{tensor} has values that overflow float16", "Use --dtype bfloat16")
    writer.add(tensor, stored)
    report.bytes_before += stored.numel() * stored.element_size()
    report.bytes_after += stored.numel() * stored.element_size()
    report.all_weights += stored.numel()


def _write_quantized(
    source: WeightSource,
    tensor: str,
    precision: Precision,
    method: str,
    dtype: torch.dtype,
    device: torch.device,
    writer: CheckpointWriter,
    report: QuantizationReport,
) -> None:
    module = tensor.removesuffix(".weight")
    dense = _read(source, tensor, device)
    try:
        codes = reusable(source.stored_codes(tensor, device), precision, dtype) or quantize(
            dense, precision, method, dtype
        )
    except InputError as error:
        raise InputError(f"{tensor}: {error.message}", error.hint) from error
    tensors = int4_tensors(codes, dtype) if isinstance(codes, Int4Codes) else fp8_tensors(codes, dtype)
    for suffix, value in tensors.items():
        writer.add(f"{module}.{suffix}", value)
        report.bytes_after += value.numel() * value.element_size()
    norm = float(dense.norm())
    error_norm = float((codes.dequantize() - dense).norm())
    report.layers.append(LayerReport(module, str(precision), error_norm / norm if norm else 0.0, dense.numel()))
    report.bytes_before += dense.numel() * dtype.itemsize
    report.quantized_weights += dense.numel()
    report.all_weights += dense.numel()


def reusable(stored: WeightCodes | None, precision: Precision, dtype: torch.dtype) -> WeightCodes | None:
    """The source's own codes when they are already what is asked for: conversion between formats without loss."""
    if isinstance(stored, Fp8Codes):
        fits = precision.kind == "fp8"
    elif isinstance(stored, Int4Codes):
        allowed = {"symmetric": ("symmetric",), "integer": ("symmetric", "integer"), "float": ()}[precision.zero]
        fits = (
            precision.kind == "int4" and stored.group_size == precision.group_size and stored.zero_kind() in allowed
        )
    else:
        return None
    return stored if fits and torch.equal(stored.scale.to(dtype).float(), stored.scale) else None


def _write_files(
    location: ModelLocation,
    source: WeightSource,
    config: Any,
    groups: dict[Precision, list[str]],
    ignored: list[str],
    report: QuantizationReport,
    writer: CheckpointWriter,
) -> None:
    """config.json with the quantisation, and the tokenizer."""
    if isinstance(source, SafetensorsSource):
        data = json.loads((source.folder / "config.json").read_text(encoding="utf-8"))
        data.pop("dtype", None)
        data["torch_dtype"] = report.dtype
        for path in sorted(source.folder.iterdir()):
            skip = path.name in ("config.json", "quantize_config.json", REPORT_FILE) or ".index." in path.name
            if path.is_file() and path.suffix in COPIED_SUFFIXES and not skip:
                writer.copy(path)
    else:
        data = config_json(config, report.dtype)
        tokenizer = load_tokenizer(location, source, config)
        for name, text in tokenizer_files(tokenizer, config.max_position).items():
            writer.write_text(name, text)
    data["quantization_config"] = quantization_config(groups, ignored)
    writer.write_json("config.json", data)
