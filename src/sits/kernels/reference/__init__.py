"""Plain PyTorch versions of every operator: the meaning of the others, and the fallback on any device."""

from sits.kernels.reference import attention, layer, linear

__all__ = ["attention", "layer", "linear"]
