"""Seeded random weights in a model's true shapes: no download, built in place on the device in the final dtype.

Each matrix is normal with standard deviation 1 / sqrt(columns), and the two projections that write to the residual
stream are divided by sqrt(2 * layers): activations keep their size through any depth, logits are finite with a
spread of about 1, attention is neither uniform nor one-hot.
"""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qsl

import torch

from sits.errors import InputError
from sits.models.config import ModelConfig
from sits.models.loading.source import WeightSource
from sits.models.presets import preset_config

_POOL_SIZE = 4194301  # prime: rows of any usual width are different windows of the pool


def parse_synthetic(name: str) -> tuple[ModelConfig, int]:
    """``synthetic:<preset>[?layers=N&seed=S]`` -> (config, seed)."""
    preset, _, query = name.removeprefix("synthetic:").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = set(options) - {"layers", "seed"}
    if unknown:
        raise InputError(f"unknown option {sorted(unknown)[0]!r} in {name!r}", "Options: layers=N, seed=N")
    try:
        numbers = {key: int(value) for key, value in options.items()}
    except ValueError as error:
        raise InputError(f"{name!r}: options must be whole numbers") from error
    return preset_config(preset, numbers.get("layers")), numbers.get("seed", 0)


class SyntheticSource(WeightSource):
    """Weights made on demand; the same name and seed give the same weights on one device type."""

    def __init__(self, config: ModelConfig, seed: int = 0, name: str = "synthetic"):
        self.config = config
        self.seed = seed
        self.name = name
        self._pools: dict[torch.device, torch.Tensor] = {}
        self._shapes = self._all_shapes()

    def _all_shapes(self) -> dict[str, tuple[int, ...]]:
        config = self.config
        table = (config.vocab_size, config.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
        if not config.tied_embeddings:
            shapes["lm_head.weight"] = table
        shapes["model.norm.weight"] = (config.hidden_size,)
        linears = config.linear_shapes()
        for index in range(config.layers):
            prefix = f"model.layers.{index}."
            shapes[f"{prefix}self_attn.qkv_proj.weight"] = linears["qkv_proj"]
            shapes[f"{prefix}self_attn.o_proj.weight"] = linears["o_proj"]
            shapes[f"{prefix}mlp.gate_up_proj.weight"] = linears["gate_up_proj"]
            shapes[f"{prefix}mlp.down_proj.weight"] = linears["down_proj"]
            if config.qkv_bias:
                shapes[f"{prefix}self_attn.qkv_proj.bias"] = linears["qkv_proj"][:1]
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}{norm}.weight"] = (config.hidden_size,)
        return shapes

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        return self._shapes.get(tensor)

    def read_into(self, tensor: str, out: torch.Tensor) -> None:
        if out.dim() == 1:
            out.fill_(0.0 if tensor.endswith(".bias") else 1.0)
            return
        scale = out.shape[-1] ** -0.5
        if tensor.endswith(("o_proj.weight", "down_proj.weight")):
            scale /= (2 * self.config.layers) ** 0.5
        number = int.from_bytes(hashlib.sha256(f"{self.seed}/{tensor}".encode()).digest()[:6], "little")
        if out.device.type == "cuda":
            generator = torch.Generator(out.device).manual_seed(number)
            out.normal_(0.0, scale, generator=generator)
        else:
            self._fill_from_pool(out, scale, number)

    def _fill_from_pool(self, out: torch.Tensor, scale: float, number: int) -> None:
        """Drawing billions of normals takes minutes on a CPU: repeat one pool of them instead."""
        pool = self._pools.get(out.device)
        if pool is None:
            generator = torch.Generator(out.device).manual_seed(self.seed)
            pool = torch.empty(_POOL_SIZE, device=out.device).normal_(generator=generator)
            self._pools[out.device] = pool
        scaled = (pool * scale).to(out.dtype)
        flat, start, done = out.view(-1), number % _POOL_SIZE, 0
        while done < flat.numel():
            piece = scaled[start : start + flat.numel() - done]
            flat[done : done + piece.numel()].copy_(piece)
            done, start = done + piece.numel(), 0

    def weight_hash(self) -> dict[str, str]:
        recipe = f"{self.config}/{self.seed}"
        return {"fingerprint": f"synthetic-sha256:{hashlib.sha256(recipe.encode()).hexdigest()}"}
