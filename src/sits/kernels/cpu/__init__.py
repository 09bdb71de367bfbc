"""CPU implementations of the operators; importing the package registers them."""

from sits.kernels.cpu import attention, layer, linear

__all__ = ["attention", "layer", "linear"]
