"""Triton kernels: importing this module registers them."""

from sits.kernels.triton import activation, attention, norm, rope

__all__ = ["activation", "attention", "norm", "rope"]
