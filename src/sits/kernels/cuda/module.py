"""Compile CUDA C++ with NVRTC, keep the binary on disk, launch with programmatic dependent launch.

Knows nothing of tensors beyond their addresses. A kernel takes one struct by value (a ``ctypes.Structure``), so a
launch is one driver call; PyTorch's current stream is used, so CUDA graph capture sees the launches.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent


class CudaError(RuntimeError):
    """A driver or compiler call failed; the text names the call and the code."""


def _check(result: tuple[Any, ...], call: str) -> Any:
    code, *values = result
    if int(code) != 0:
        raise CudaError(f"{call} failed: {code!r}")
    return values[0] if len(values) == 1 else values


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``$SITS_CACHE/kernels`` or ``~/.cache/sits/kernels``."""
    return Path(os.environ.get("SITS_CACHE", Path.home() / ".cache" / "sits")) / "kernels"


def compile_source(source: str, defines: dict[str, int], architecture: str) -> bytes:
    """CUDA C++ -> cubin for an architecture such as ``sm_90a``; needs no GPU. Raises ``CudaError`` with the log."""
    from cuda.bindings import nvrtc

    options = [f"--gpu-architecture={architecture}", "-std=c++17", "--use_fast_math"]
    options += [f"-D{name}={value}" for name, value in sorted(defines.items())]
    headers = {file.name: file.read_text() for file in sorted(SOURCES.glob("*.cuh"))}
    version = ".".join(str(part) for part in _check(nvrtc.nvrtcVersion(), "nvrtcVersion"))
    everything = "\0".join([version, source, *headers.values(), *options])
    key = hashlib.blake2b(everything.encode(), digest_size=16).hexdigest()
    cached = cache_folder() / f"{key}.cubin"
    if cached.is_file():
        return cached.read_bytes()
    texts, names = [text.encode() for text in headers.values()], [name.encode() for name in headers]
    program = _check(
        nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", len(headers), texts, names), "nvrtcCreateProgram"
    )
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(code) != 0:
            log = b" " * _check(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CudaError(f"compiling with {options} failed:\n{log.decode(errors='replace')}")
        binary = b" " * _check(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        _check(nvrtc.nvrtcGetCUBIN(program, binary), "nvrtcGetCUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    _store(cached, binary)
    return binary


def _store(path: Path, binary: bytes) -> None:
    """Atomic, and silent when the cache cannot be written: it only saves time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(binary)
        os.replace(file.name, path)
    except OSError:
        return


class Kernel:
    """A compiled kernel on the current device."""

    def __init__(self, file: str, name: str, defines: dict[str, int], shared_bytes: int = 0, prefix: str = ""):
        import torch
        from cuda.bindings import driver

        self._driver = driver
        torch.cuda.current_stream()  # the primary context must exist before a module is loaded into it
        major, minor = torch.cuda.get_device_capability()
        suffix = "a" if major >= 9 else ""
        binary = compile_source(prefix + (SOURCES / file).read_text(), defines, f"sm_{major}{minor}{suffix}")
        self._module = _check(driver.cuModuleLoadData(binary), "cuModuleLoadData")
        self._function = _check(driver.cuModuleGetFunction(self._module, name.encode()), "cuModuleGetFunction")
        self.shared_bytes = shared_bytes
        if shared_bytes > 48 * 1024:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuFuncSetAttribute(self._function, attribute, shared_bytes), "cuFuncSetAttribute")
        dependent = driver.CUlaunchAttribute()
        dependent.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        dependent.value.programmaticStreamSerializationAllowed = 1
        self._dependent = dependent

    def launch(self, grid: tuple[int, int, int], threads: int, arguments: ctypes.Structure, overlap: bool) -> None:
        """Launch on PyTorch's current stream; ``overlap`` lets it start before the kernel ahead of it has ended.

        ``SITS_PDL=0`` turns that off everywhere (the ablation switch).
        """
        import torch

        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = self.shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        if overlap and os.environ.get("SITS_PDL", "1") != "0":
            config.attrs = [self._dependent]
            config.numAttrs = 1
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        _check(
            self._driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0), "cuLaunchKernelEx"
        )

    def resident_clusters(self, size: int, threads: int) -> int:
        """Clusters of ``size`` CTAs that can be on the device at once (a persistent grid must not be larger)."""
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = size, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = self.shared_bytes
        dimension = driver.CUlaunchAttribute()
        dimension.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension.value.clusterDim.x, dimension.value.clusterDim.y, dimension.value.clusterDim.z = size, 1, 1
        config.attrs = [dimension]
        config.numAttrs = 1
        return int(
            _check(driver.cuOccupancyMaxActiveClusters(self._function, config), "cuOccupancyMaxActiveClusters")
        )


@functools.cache
def multiprocessors(device: Any) -> int:
    """Multiprocessors of a CUDA ``torch.device``."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


def address(tensor: Any) -> int | None:
    """A tensor's address for an argument structure; a null pointer for ``None``."""
    return None if tensor is None else tensor.data_ptr()


def tensor_map(matrix: Any, box_rows: int, box_chunks: int) -> Any:
    """128 bytes that describe a contiguous 16-bit or e4m3 matrix to the copy engine.

    [rows, columns] is seen as [columns / C, rows, C], C elements being 128 bytes (columns must be a multiple of C). A
    box of it is [box_chunks, box_rows, C] in the 128-byte swizzle, zeros outside the matrix.
    """
    import torch

    kinds = {torch.bfloat16: "BFLOAT16", torch.float16: "FLOAT16", torch.float8_e4m3fn: "UINT8"}
    rows, columns = matrix.shape
    return _tensor_map(matrix.data_ptr(), rows, columns, kinds[matrix.dtype], matrix.itemsize, box_rows, box_chunks)


@functools.lru_cache(maxsize=1024)  # steps that are not captured would spend more on this than on the launch
def _tensor_map(address: int, rows: int, columns: int, kind: str, size: int, box_rows: int, box_chunks: int) -> Any:
    from cuda.bindings import driver

    wide = 128 // size
    encoded = _check(
        driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
            3,
            address,
            [driver.cuuint64_t(wide), driver.cuuint64_t(rows), driver.cuuint64_t(columns // wide)],
            [driver.cuuint64_t(columns * size), driver.cuuint64_t(128)],
            [driver.cuuint32_t(wide), driver.cuuint32_t(box_rows), driver.cuuint32_t(box_chunks)],
            [driver.cuuint32_t(1)] * 3,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        "cuTensorMapEncodeTiled",
    )
    words = (ctypes.c_uint64 * 16)(*(int(word) for word in encoded.opaque))
    return (ctypes.c_ubyte * 128).from_buffer_copy(words)


@functools.cache
def is_available() -> bool:
    """Whether NVRTC and a GPU of compute capability 9.0 (the only one these kernels were tuned on) are here."""
    try:
        import torch
        from cuda.bindings import driver, nvrtc

        return bool(driver and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)) and (
            int(nvrtc.nvrtcVersion()[0]) == 0
        )
    except Exception:  # a broken driver or loader must never stop the fallback from working
        return False
