"""Native CPU kernels (C, compiled on first use, optional). ``ops`` registers them when they load."""
