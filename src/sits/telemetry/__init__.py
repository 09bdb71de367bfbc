"""Hardware telemetry: what the memory and the power supply really did while a model ran.

Every figure names its source. A counter that cannot be read is absent with a reason, never 0.
"""
