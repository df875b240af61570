"""How many processes may pack at once within a memory limit."""

from __future__ import annotations

from stoker.errors import BadRequest
from stoker.host.limits import GB, allowed_memory

PACKER_BYTES, WORKER_BYTES = 250_000_000, 250_000_000
"""Memory of the main process, and of each worker: its libraries, one chunk of a stream, one image
of up to 32 million pixels. A larger image (never two at a time) may take 0.8 GB more."""


def packing_workers(max_ram_gb: float, memory: int, cores: int) -> int:
    """At most one worker a core. Raises BadRequest where `--max-ram` is too small for one."""
    fits = int((allowed_memory(max_ram_gb, memory) - PACKER_BYTES) // WORKER_BYTES)
    if fits < 1 and max_ram_gb:
        least_gb = (PACKER_BYTES + WORKER_BYTES) / GB
        raise BadRequest(
            f"--max-ram {max_ram_gb:g} is too small: packing needs at least {least_gb:.1f} GB"
        )
    return max(min(cores, fits), 1)
