"""Whether an error says that memory ran out, on the host or on a device.

Invariants: this is the only place that knows. PyTorch, cuDNN, cuBLAS, NCCL, Triton and the compiler
each report it in their own way, some as a plain RuntimeError. torch is not imported here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stoker.host import proc
from stoker.host.limits import CGROUPS, OWN_CGROUP, cgroups

MESSAGES = re.compile(
    r"(CUDA|HIP) out of memory"
    r"|(CUDA|HIP)( driver)? error: out of memory"
    r"|Triton Error \[\w+\]: out of memory"
    r"|Cuda failure (\d+ )?'out of memory'"
    r"|Failed to CUDA (calloc|malloc)"
    r"|CUDNN_STATUS_\w*ALLOC(ATION)?_FAILED"
    r"|(CU|HIP|ROC)BLAS_STATUS_ALLOC_FAILED"
    r"|CUSOLVER_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)
"""What RuntimeErrors say. PyTorch's own OutOfMemoryError and Python's MemoryError need no text."""

LAST_WORDS = re.compile(
    r"std::bad_alloc|Cannot allocate memory|MemoryError|can't allocate memory"
    r"|Memory allocation still failed|cannot allocate memory for thread-local data"
    r"|failed to map segment from shared object(?!: Operation not permitted)"
    r"|cannot map zero-fill pages"
)
"""What processes write to standard error that end without an exception, or could not start."""
AT_A_LIMIT = re.compile(
    r"^SystemError: |thread: Resource temporarily unavailable|can't start new thread", re.MULTILINE
)
"""What else a process writes whose memory is limited. Without a limit it has other causes."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it was raised for, says that memory ran out."""
    return any(says_so(one) for one in chain_of(error))


def says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and MESSAGES.search(str(error)) is not None


def log_says_so(text: str, *, limited: bool = False) -> bool:
    """Whether the last words of a process, with a limit on its memory or not, say that memory ran
    out."""
    patterns = (MESSAGES, LAST_WORDS, *([AT_A_LIMIT] if limited else []))
    return any(pattern.search(text) for pattern in patterns)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error and those behind it. The compiler keeps the error of a backend in an attribute."""
    waiting, known = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in known:
            known.add(id(one))
            yield one
            behind = (one.__cause__, one.__context__, getattr(one, "inner_exception", None))
            waiting += [other for other in behind if isinstance(other, BaseException)]


def kernel_kills(root: str = CGROUPS, own: str = OWN_CGROUP) -> int:
    """Processes that the kernel has killed so far because this process's control groups were out of
    memory, or the machine where it counts them; 0 where it does not."""
    counts = [0]
    for folder in cgroups(root, own):
        with suppress(OSError):
            counts.append(proc.fields((folder / "memory.events").read_text()).get("oom_kill", 0))
    with suppress(OSError):
        counts.append(proc.fields(Path("/proc/vmstat").read_text()).get("oom_kill", 0))
    return max(counts)
