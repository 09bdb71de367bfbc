"""CUDA C++ kernels, compiled at first use by NVRTC and launched through the driver API (``cuda-bindings``).

Only what Triton cannot express well lives here: programmatic dependent launch with weight prefetch and register-exact
tensor-core fragments for small batches. Everything has a plain PyTorch reference beside it.
"""
