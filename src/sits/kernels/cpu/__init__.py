"""CPU implementations of the operators; importing the package registers them.

``cpu`` implementations are PyTorch alone; ``native`` ones (C, compiled on first use) win where a compiler exists.
"""

from sits.kernels.cpu import attention, layer, linear
from sits.kernels.cpu.native import ops as native

__all__ = ["attention", "layer", "linear", "native"]
