"""Memory of a rank's loaders, and how many batches ahead fit into a limit.

Invariant: a pure function of numbers that are known before the first batch. A loader's memory is
its batch buffers (one in use, on a GPU one that is being copied, the others ahead) and, for each
thread, one stored and one decoded image; with the compiled extra up to 2 MB of stored images more
in the first epoch. Nothing else grows with the set, because shards are read, not mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.errors import BadRequest
from stoker.host.limits import GB


@dataclass(frozen=True)
class LoaderMemory:
    batch_bytes: int
    threads: int
    image_bytes: int
    """The largest image, stored and decoded."""
    buffers: int = 1
    """Batch buffers beside those that are ahead."""


def total_bytes(loaders: Sequence[LoaderMemory], prefetch: int) -> int:
    """Memory of some loaders together, with `prefetch` batches ahead."""
    return sum(
        (prefetch + loader.buffers) * loader.batch_bytes + loader.threads * loader.image_bytes
        for loader in loaders
    )


def fit_prefetch(
    loaders: Sequence[LoaderMemory], prefetch: int, allowed_bytes: int
) -> tuple[int, str | None]:
    """The batches ahead that fit, at most `prefetch`, and a message where they are fewer. Raises
    BadRequest where not even one batch ahead fits."""
    fits = prefetch
    while fits > 1 and total_bytes(loaders, fits) > allowed_bytes:
        fits -= 1
    if (needed_bytes := total_bytes(loaders, fits)) > allowed_bytes:
        batch_bytes = max(loader.batch_bytes for loader in loaders)
        raise BadRequest(
            f"loading needs {needed_bytes / GB:.2f} GB a rank with one batch ahead "
            f"({batch_bytes / GB:.2f} GB a batch), and {allowed_bytes / GB:.2f} GB are allowed: "
            "raise --max-ram, or lower --batch-size, --image-size, --eval-batch-size or --threads"
        )
    if fits == prefetch:
        return fits, None
    return fits, (
        f"{fits} instead of {prefetch} batches are loaded ahead, to stay within "
        f"{allowed_bytes / GB:.2f} GB a rank (--max-ram)"
    )
