"""Rotary embedding tables from a RopeConfig.

Formulas: default (Su et al., RoFormer), linear (position interpolation), llama3 (Llama 3.1's wavelength-dependent
scaling), yarn (Peng et al., 2023), longrope (Ding et al., 2024, as Phi-3 uses it).
"""

from __future__ import annotations

import math

import torch

from sits.errors import InputError
from sits.models.config import ModelConfig, RopeConfig


def inverse_frequencies(rope: RopeConfig, rotary_dim: int, context: int) -> torch.Tensor:
    """Angular frequency of each rotated pair, float32 [rotary_dim / 2], for contexts up to ``context`` tokens."""
    base = rope.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    inverse = 1.0 / base
    if rope.kind == "linear":
        return inverse / rope.factor
    if rope.kind == "llama3":
        return _llama3(inverse, rope)
    if rope.kind == "yarn":
        return _yarn(inverse, rope, rotary_dim)
    if rope.kind in ("longrope", "factors"):
        long = rope.kind == "longrope" and context > rope.original_max_position
        factors = rope.long_factor if long else rope.short_factor
        if len(factors) != rotary_dim // 2:
            raise InputError(f"rotary scaling has {len(factors)} factors, the model needs {rotary_dim // 2}")
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * base)
    return inverse


def _llama3(inverse: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Keep short wavelengths, divide long ones by the factor, blend in between."""
    turns = rope.original_max_position * inverse / (2 * math.pi)  # full turns over the original context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * inverse / rope.factor + blend * inverse


def _yarn(inverse: torch.Tensor, rope: RopeConfig, rotary_dim: int) -> torch.Tensor:
    """Blend interpolated and original frequencies by a ramp over dimensions."""

    def dimension(rotations: float) -> float:
        turns = rope.original_max_position / (rotations * 2 * math.pi)
        return rotary_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return inverse / rope.factor * ramp + inverse * (1 - ramp)


def attention_factor(rope: RopeConfig) -> float:
    """Scale of cos and sin that goes with the scaled frequencies (1.0 where there is none)."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1.0:
        return 1.0
    if rope.kind == "yarn":
        return 0.1 * math.log(rope.factor) + 1.0
    if rope.kind == "longrope":
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position))
    return 1.0


def cos_sin_table(config: ModelConfig, context: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """float32 [context, rotary_dim]: cos in the first half of the columns, sin in the second."""
    inverse = inverse_frequencies(config.rope, config.rotary_size, context).to(device)
    angles = torch.arange(context, dtype=torch.float32, device=device).unsqueeze(1) * inverse
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor(config.rope)
