"""Which weight object each linear becomes while a model loads: as stored, or converted by a precision or a plan."""

from __future__ import annotations

from pathlib import Path

import torch

from sits.errors import InputError
from sits.models.loading.build import LinearFormat, LinearSpec, read_dense
from sits.models.loading.source import WeightSource
from sits.quant.convert import quantize, scale_dtype_for, stack, weight_object
from sits.quant.formats import WeightCodes
from sits.quant.int4 import Int4Codes
from sits.quant.linear import LinearWeight
from sits.quant.plan import PrecisionPlan, read_plan
from sits.quant.precision import Precision, parse_precision


def linear_format_for(quantization: str | None, source: WeightSource) -> LinearFormat | None:
    """The format of a ``quantization`` option.

    None or ``auto``: as the checkpoint says (a quantised folder stays quantised; GGUF files are made dense).
    ``stored``: GGUF Q4_0 and Q4_1 stay INT4 too. ``dense``: everything is made dense. ``int4-g32``, ``fp8``, ...:
    that precision; a weight stored as INT4 in the same groups keeps its codes. A ``.yaml`` file: a plan.
    """
    from sits.models.loading.quantized_source import QuantizedSource

    if quantization in (None, "auto"):
        return _keep_stored if isinstance(source, QuantizedSource) else None
    assert quantization is not None
    if quantization == "stored":
        return _keep_stored
    if quantization == "dense":
        return None
    if quantization.endswith((".yaml", ".yml")):
        return planned_format(read_plan(quantization))
    if Path(quantization).exists():
        raise InputError(f"{quantization} is not a plan", "Plan files end in .yaml")
    return planned_format(PrecisionPlan(parse_precision(quantization)))


def planned_format(plan: PrecisionPlan, keep_codes: bool = True) -> LinearFormat:
    """Convert each linear to its precision in ``plan``.

    With ``keep_codes`` a weight that is stored as INT4 in the wanted groups is taken over without loss; without, it
    is made dense and quantised again (to measure what that costs).
    """

    def make(spec: LinearSpec, source: WeightSource, dtype: torch.dtype, device: torch.device) -> LinearWeight | None:
        precision = plan.shared(plan_names(spec))
        if precision.kind == "dense":
            return None
        stored = _stored(spec, source, device) if keep_codes else None
        if isinstance(stored, Int4Codes) and _same_groups(stored, precision):
            return weight_object(stored, _bias(spec, source, dtype, device))
        wide = torch.float32 if device.type == "cpu" else dtype  # no rounding to the model's dtype in between
        weight, bias = read_dense(spec, source, wide, device)
        codes = quantize(weight, precision, plan.method, scale_dtype_for(dtype))
        return weight_object(codes, None if bias is None else bias.to(dtype))

    return make


def plan_names(spec: LinearSpec) -> list[str]:
    """The names a plan uses for the parts of a linear; a tied head is ``lm_head`` there."""
    return [spec.name] if spec.name == "lm_head" else [prefix for prefix, _ in spec.parts]


def _same_groups(stored: Int4Codes, precision: Precision) -> bool:
    return precision.kind == "int4" and stored.group_size == precision.group_size


def _stored(spec: LinearSpec, source: WeightSource, device: torch.device) -> WeightCodes | None:
    """The linear in the checkpoint's own codes, parts stacked; None when any part is dense or they do not fit."""
    parts = [source.stored_codes(f"{prefix}.weight", device) for prefix, _ in spec.parts]
    return None if any(part is None for part in parts) else stack([part for part in parts if part is not None])


def _bias(spec: LinearSpec, source: WeightSource, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    if not spec.has_bias:
        return None
    bias = torch.empty(spec.out_features, dtype=dtype, device=device)
    first = 0
    for prefix, rows in spec.parts:
        source.read_checked(f"{prefix}.bias", bias[first : first + rows])
        first += rows
    return bias


def _keep_stored(
    spec: LinearSpec, source: WeightSource, dtype: torch.dtype, device: torch.device
) -> LinearWeight | None:
    codes = _stored(spec, source, device)
    if codes is None:
        return None
    rows = sum(rows for _, rows in spec.parts)
    if codes.shape != (rows, spec.in_features):
        raise InputError(
            f"{source.name}: {spec.name} has shape {list(codes.shape)}, the config asks for [{rows}, "
            f"{spec.in_features}]",
            "config and weights do not belong together",
        )
    return weight_object(codes, _bias(spec, source, dtype, device))
