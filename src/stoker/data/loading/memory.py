"""How much memory loading takes, and what is done where that is too much.

Invariant: a pure function of numbers known before the first batch. A loader's memory is its batch
buffers (one in use, the rest ahead) and, for each thread, one stored and one decoded image: nothing
else grows with the set, and shards are read, not mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.errors import BadRequest

SHARE = 0.5
"""Of the machine's memory, or of the container's, that loading may take unless told otherwise."""
GB = 10**9
PACKER_BYTES, WORKER_BYTES = 250_000_000, 250_000_000
"""What packing takes by itself, and for each worker: an interpreter with its libraries, a chunk of
a stream on its way, and an image of up to 32 million pixels in the making. A larger one, of which
only one is decoded at a time, may take 0.8 GB more."""


@dataclass(frozen=True)
class Need:
    """What one rank's loader asks for."""

    batch_bytes: int
    threads: int
    image_bytes: int
    """The largest image, stored and decoded."""

    def total(self, prefetch: int) -> int:
        return (prefetch + 1) * self.batch_bytes + self.threads * self.image_bytes


def total(needs: Sequence[Need], prefetch: int) -> int:
    """What some loaders take together."""
    return sum(need.total(prefetch) for need in needs)


def fitted(needs: Sequence[Need], prefetch: int, room: int) -> tuple[int, str | None]:
    """How many batches may be made ahead in this room, and a word where they are fewer."""
    fits = prefetch
    while fits > 1 and total(needs, fits) > room:
        fits -= 1
    if total(needs, fits) > room:
        batch = max(need.batch_bytes for need in needs)
        raise BadRequest(
            f"loading needs {total(needs, 1) / GB:.2f} GB a rank even with one batch ahead "
            f"({batch / GB:.2f} GB a batch), and {room / GB:.2f} GB are allowed: raise --max-ram, "
            "or lower --batch-size, --image-size, --eval-batch-size or --threads"
        )
    if fits == prefetch:
        return fits, None
    return fits, (
        f"{fits} instead of {prefetch} batches are made ahead, to stay within "
        f"{room / GB:.2f} GB a rank (--max-ram)"
    )


def packing_workers(max_ram_gb: float, memory: int, cores: int) -> int:
    """How many processes may pack at once."""
    room = max_ram_gb * GB if max_ram_gb else SHARE * memory
    fits = int((room - PACKER_BYTES) // WORKER_BYTES)
    if fits < 1 and max_ram_gb:
        least = (PACKER_BYTES + WORKER_BYTES) / GB
        raise BadRequest(f"packing needs at least {least:.1f} GB: raise --max-ram")
    return max(min(cores, fits), 1)


def room_of(max_ram_gb: float, memory: int, ranks_here: int) -> int:
    """Bytes that one rank's loader may take."""
    return int((max_ram_gb * GB if max_ram_gb else SHARE * memory) / ranks_here)
