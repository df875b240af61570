"""What about a machine will slow a run down or end it, and what to do about it.

Invariant: only what matters to Stoker is a finding. A small /dev/shm is none: threads load images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from stoker.measure.environment import Environment, FreeSpace
from stoker.text import plural

LEAST_FILES = 1024
LEAST_INODES = 1000
CORES_A_GPU = 4
CHECKPOINTS = 3


@dataclass(frozen=True)
class Needs:
    """What a run will need from the machine, as far as it is known."""

    set_bytes: int | None = None
    checkpoint_bytes: int | None = None
    nodes: int = 1


@dataclass(frozen=True)
class Finding:
    """A problem and what to do about it. The names are keys of `doctor --json`."""

    words: str
    action: str


def findings(machine: Environment, needs: Needs) -> list[Finding]:
    """The problems of a machine, the worst first."""
    disks = (disk_problems(space, needs) for space in machine.rooms if space.what == "runs")
    return [Finding(*row) for row in chain(*disks, problems(machine, needs))]


def problems(machine: Environment, needs: Needs) -> Iterator[tuple[str, str]]:
    """Each problem of memory, processor and settings, with what to do about it."""
    if needs.set_bytes and needs.set_bytes > machine.memory:
        yield (
            f"the set ({needs.set_bytes / 1e9:.1f} GB) is larger than the memory "
            f"({machine.memory / 1e9:.1f} GB): every epoch reads from the disk",
            "store smaller images (stoker pack --max-side), or use more memory",
        )
    if machine.gpus and machine.cores < CORES_A_GPU * len(machine.gpus):
        yield (
            f"{plural(machine.cores, 'core')} for {plural(len(machine.gpus), 'GPU')}: "
            "the GPUs will wait for decoding",
            f"ask for at least {CORES_A_GPU} cores a GPU",
        )
    if machine.machine_cores and machine.cores < machine.machine_cores:
        yield (
            f"this process may use {machine.cores} of the {machine.machine_cores} cores here",
            "ask the scheduler or the container for more, if they are yours",
        )
    if machine.avx2 is False:
        yield (
            "the processor has no AVX2: decoding and models run several times slower",
            "use another machine, or a virtual machine that shows the processor of its host",
        )
    files = machine.open_files
    if files is not None and 0 <= files < LEAST_FILES:
        yield f"only {files} files may be open at once", f"run ulimit -n {4 * LEAST_FILES}"
    if machine.synchronised is False and needs.nodes > 1:
        yield (
            "the clock is not synchronised: the times of nodes will differ",
            "start chrony or ntpd",
        )


def disk_problems(space: FreeSpace, needs: Needs) -> Iterator[tuple[str, str]]:
    """Each problem of a disk that runs are written to, with what to do about it."""
    if not space.writable:
        yield f"{space.path} cannot be written to", "use stoker train --run DIR with another folder"
    if needs.checkpoint_bytes and space.free < CHECKPOINTS * needs.checkpoint_bytes:
        yield (
            f"{space.free / 1e9:.1f} GB free for runs, and a checkpoint takes "
            f"{needs.checkpoint_bytes / 1e9:.1f} GB: {CHECKPOINTS} must fit",
            "free some space, or use stoker train --run DIR on another disk",
        )
    if space.inodes is not None and space.inodes < LEAST_INODES:
        yield f"only {space.inodes} more files can be created in {space.path}", "remove old runs"
