"""Which GPU each worker of this machine uses: a cell sees one, by CUDA_VISIBLE_DEVICES.

    CACHE/gpus/BOOT/NAME.0      locked by the command of the first worker that uses the GPU
    CACHE/gpus/BOOT/NAME.1      by that of the second one

Invariants: a worker has the GPU with the fewest workers of all commands of this user, among those
that its command may use; it keeps it when it is started again. Neither CUDA nor NVML is asked. A
GPU with two names, by number and by UUID, counts as two.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from stoker.host.counters import kernel_text
from stoker.stores.settings import cache_folder
from stoker.text import plural

VARIABLE = "CUDA_VISIBLE_DEVICES"
Seat = tuple[str, int]
"""A GPU, and how many workers have taken it before."""


@contextmanager
def taken_gpus(names: Sequence[str], workers: int) -> Iterator[list[Seat]]:
    """A GPU for each worker, as long as the block lasts; none where there are no names. On a disk
    without locks of files, other commands are not seen."""
    if not names:
        yield []
        return
    boot = kernel_text("/proc/sys/kernel/random/boot_id").strip()
    folder = cache_folder() / "gpus" / (boot or "unknown")
    handles: list[int] = []
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            seats = [take_seat(folder, names, handles) for _ in range(workers)]
        except OSError:
            seats = [(names[slot % len(names)], slot // len(names)) for slot in range(workers)]
        yield seats
    finally:
        for handle in handles:
            os.close(handle)


def take_seat(folder: Path, names: Sequence[str], handles: list[int]) -> Seat:
    """The first free seat, of which the handle is kept. Raises OSError."""
    level = 0
    while True:
        for name in names:
            path = folder / f"{quote(name, safe='')}.{level}"
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
            except OSError:
                os.close(handle)
                raise
            else:
                handles.append(handle)
                return name, level
        level += 1


def sharing_line(names: Sequence[str], seats: Sequence[Seat]) -> str:
    """One line where workers share a GPU, or GPUs stay idle; empty where each has one."""
    own = Counter(name for name, _ in seats)
    if not own:
        return ""
    workers = plural(len(seats), "worker")
    if most := max(own.values()) - 1:
        return f"{workers} share {plural(len(own), 'GPU')}: up to {most + 1} train on one GPU"
    if shared := sum(level > 0 for _, level in seats):
        return f"{shared} of {workers} share a GPU with workers of other commands"
    if idle := len(names) - len(own):
        return (
            f"{workers} on {plural(len(names), 'GPU')}: a cell trains on one, so {idle} stay idle "
            f"unless others use them; --workers {len(names)} uses all"
        )
    return ""
