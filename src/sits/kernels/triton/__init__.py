"""Kernels for CUDA and ROCm devices: importing this module registers them."""

from sits.kernels import fp8_linear, int4_linear
from sits.kernels.triton import activation, attention, fused_decode, norm, quantize_int4, rope

__all__ = ["activation", "attention", "fp8_linear", "fused_decode", "int4_linear", "norm", "quantize_int4", "rope"]
