"""SITS 2026 as pure functions and schemas: no tensors, no I/O beyond reading and writing its own formats."""
