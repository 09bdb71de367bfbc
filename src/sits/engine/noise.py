"""Random numbers that depend only on a seed and a counter: the same request chooses the same tokens in any batch.

SplitMix64 (Steele, Lea, Flood 2014) as a counter-based generator; one number per token is all that sampling by
the inverse of the distribution function needs, so it costs a microsecond on the host and nothing on the device.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """A bijection of 64-bit integers with full avalanche."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derive_seed(seed: int, index: int) -> int:
    """A seed for item ``index`` of a family, unrelated to its neighbours."""
    return mix(mix(seed + _STEP) + index * _STEP)


def uniform(seed: int, counter: int) -> float:
    """Uniform in [0, 1), on a grid of 2**-23 so that it stays below 1 in float32."""
    return (mix(mix(seed) + (counter + 1) * _STEP) >> 41) * 2.0**-23
