"""An error that says that memory ran out is recognised, whoever raises it; no other error is."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch
from torch import nn

from stoker.host.out_of_memory import is_out_of_memory

OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError(),
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.77 GiB"
    ),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    torch.AcceleratorError("CUDA error: out of memory"),  # type: ignore[attr-defined]
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul(...)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
    torch.distributed.DistBackendError(
        "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error, NCCL version 2.19.3\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 'out of memory'"
    ),
    torch.distributed.DistBackendError("Last error:\nCuda failure 2 'out of memory'"),
    RuntimeError("Last error:\nFailed to CUDA calloc async 1920 bytes"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 132426121216 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:72] data. DefaultCPUAllocator: not enough memory: you "
        "tried to allocate 26214400 bytes."
    ),
]
OTHER = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x8 and 9x3)"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
    RuntimeError("out of resource: shared memory, Required: 147456, Hardware limit: 101376"),
    RuntimeError("cannot read /photos/out of memory/1.jpg"),
    FileNotFoundError(errno.ENOENT, "No such file", "/photos/CUDA out of memory/1.jpg"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EMFILE, "Too many open files"),
    ValueError("CUDA error: out of memory"),
    KeyError("OutOfMemoryError"),
    torch.distributed.DistBackendError("Last error:\nsocketProgress: Connection closed by peer"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: str(error)[:60])
def test_it_is_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHER, ids=lambda error: str(error)[:60])
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not is_out_of_memory(error)


def raised(error: Exception, cause: Exception | None) -> Exception:
    """The error as it arrives when it was raised while another one was handled."""
    try:
        try:
            raise OUT_OF_MEMORY[0]
        except MemoryError:
            raise error from cause
    except Exception as caught:
        return caught


def test_the_error_behind_another_counts() -> None:
    assert is_out_of_memory(raised(ValueError("wrapped"), OUT_OF_MEMORY[3]))
    assert is_out_of_memory(raised(ValueError("while it was handled"), None))


def test_a_chain_that_ends_in_itself_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    assert not is_out_of_memory(one)


class TestReal:
    def test_torch_on_this_host(self) -> None:
        with pytest.raises(RuntimeError) as caught:
            torch.empty(1 << 60, dtype=torch.uint8)
        assert is_out_of_memory(caught.value)

    def test_numpy_on_this_host(self) -> None:
        with pytest.raises(MemoryError) as caught:
            np.empty(1 << 60, np.uint8)
        assert is_out_of_memory(caught.value)

    @pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
    def test_a_backend_of_the_compiler(self, error: Exception) -> None:
        def backend(*arguments: object) -> None:
            raise error

        torch._dynamo.reset()
        with pytest.raises(Exception) as caught:
            torch.compile(nn.Linear(2, 2), backend=backend)(torch.zeros(1, 2))
        assert is_out_of_memory(caught.value)

    def test_inductors_own_wrapper(self) -> None:
        from torch._inductor.exc import InductorError

        assert is_out_of_memory(InductorError(OUT_OF_MEMORY[1], None))
        assert not is_out_of_memory(InductorError(OTHER[0], None))
