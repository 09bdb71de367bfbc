"""``load_model``: a name to a model, its tokenizer and its card."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sits.errors import InputError
from sits.models.config import ModelConfig
from sits.models.llama import LlamaModel
from sits.models.loading.build import LinearFormat, build_model
from sits.models.loading.linear_formats import linear_format_for
from sits.models.loading.resolve import ModelLocation, resolve
from sits.models.loading.source import WeightSource

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


@dataclass(slots=True)
class LoadedModel:
    """A model ready to run and what belongs to it."""

    model: LlamaModel
    config: ModelConfig
    tokenizer: Any  # sits.models.tokenizer.Tokenizer
    card: dict[str, Any]
    location: ModelLocation


def choose_device(device: str = "auto") -> torch.device:
    """``auto`` is the first CUDA device, else the CPU. Raises ``InputError`` for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"{device!r} is not a device", "Use auto, cpu or cuda") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available", "Use --device cpu, or install a CUDA build of torch")
    if chosen.index:  # kernels go to the current device of their thread, which is the first one in each
        raise InputError(
            f"{device!r}: only the first visible GPU is used", f"Set CUDA_VISIBLE_DEVICES={chosen.index} and use cuda"
        )
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is float32 on a CPU and bfloat16 on an accelerator."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not known", f"Use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def open_source(location: ModelLocation) -> tuple[WeightSource, ModelConfig]:
    """The weights and the config behind a location."""
    if location.kind == "synthetic":
        from sits.models.loading.synthetic import SyntheticSource, parse_synthetic

        config, seed = parse_synthetic(location.name)
        return SyntheticSource(config, seed, location.name), config
    assert location.path is not None
    if location.kind == "gguf":
        from sits.models.loading.gguf_source import GGUFSource

        gguf_source = GGUFSource(location.path)
        return gguf_source, gguf_source.config
    from sits.models.loading.quantized_source import QuantizedSource, read_quantization_config
    from sits.models.loading.safetensors_source import SafetensorsSource

    quantization = read_quantization_config(location.path)
    folder_source = (
        SafetensorsSource(location.path) if quantization is None else QuantizedSource(location.path, quantization)
    )
    return folder_source, folder_source.config


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    max_context: int = 0,
    quantization: str | None = None,
    linear_format: LinearFormat | None = None,
    on_first_layer: Callable[[LlamaModel], None] | None = None,
) -> LoadedModel:
    """Load a model by name (see ``resolve``). Every user mistake is an ``InputError``.

    ``max_context`` bounds the usable positions (0 = all the model has). ``quantization`` says how linears are held
    (see ``linear_formats.linear_format_for``): None keeps what the checkpoint says, else ``int4-g32``, ``fp8``,
    ``dense``, ``stored`` or a plan file. ``linear_format`` replaces that rule by a function. ``on_first_layer`` is
    called on a GPU as soon as one layer is there, with a model of that layer alone; the others load meanwhile.
    """
    started = time.monotonic()
    location = resolve(name)
    target = choose_device(device)
    target_dtype = choose_dtype(dtype, target)
    source, config = open_source(location)
    linear_format = linear_format or linear_format_for(quantization, source)
    if target.type == "cpu" and linear_format is None:
        _check_memory(name, config, target_dtype)
    from sits.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(location, source, config)
    try:
        with torch.inference_mode(False), torch.no_grad():
            model = build_model(
                config, source, target_dtype, target, max_context=max_context, linear_format=linear_format,
                on_first_layer=on_first_layer if target.type == "cuda" else None,
            )  # fmt: skip
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{name} does not fit on {target}: {str(error).splitlines()[0]}",
            "Use a smaller dtype, INT4 weights, or synthetic:...?layers=N",
        ) from error
    card = make_card(location, source, model)
    card["load_s"] = round(time.monotonic() - started, 3)
    return LoadedModel(model, config, tokenizer, card, location)


def _check_memory(name: str, config: ModelConfig, dtype: torch.dtype) -> None:
    """Refuse a dense model that main memory cannot hold: Linux would end the process without a word."""
    import psutil

    needed, free = config.parameters() * dtype.itemsize, psutil.virtual_memory().available
    if needed > free:
        raise InputError(
            f"{name} needs {needed / 1e9:.1f} GB of memory in {str(dtype).removeprefix('torch.')}, "
            f"{free / 1e9:.1f} GB are free",
            "Use a smaller dtype, INT4 weights, or synthetic:...?layers=N",
        )


def make_card(location: ModelLocation, source: WeightSource, model: LlamaModel) -> dict[str, Any]:
    """Plain JSON values that say which weights ran, in which shapes and formats."""
    precisions: dict[str, int] = {}
    for _, weight in model.linears():
        precisions[weight.precision] = precisions.get(weight.precision, 0) + 1
    return {
        "name": location.name,
        "kind": location.kind,
        **model.config.card(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "linear_precisions": precisions,
        "weight_bytes": model.weight_bytes(),
        "kv_bytes_per_token": model.config.kv_bytes_per_token(model.dtype.itemsize),
        "max_context": model.max_context,
        **source.weight_hash(),
    }
