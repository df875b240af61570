"""This process among the other ranks: its device, its rank, and small messages between ranks.

Invariants: a single process creates no process group. Ranks exchange small numbers over gloo, in
main memory, at points that all of them reach in the same order. A machine with a GPU that does not
work trains on the CPU only if the user hides the GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import BadRequest, StokerError
from stoker.fleet.launcher import ELASTIC, LISTENER, RENDEZVOUS_FILE, is_rank
from stoker.fleet.rank_store import signed_for_ranks
from stoker.host.gpu import gpus_at_hand
from stoker.host.limits import usable_cores
from stoker.measure.environment import nvidia_driver
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Spans
from stoker.survive.stopping import StopNow, StopRequest
from stoker.text import one_line, plural
from stoker.train.passes import blank_images, buffers_restored

SYNCS_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")  # its earlier name
    if name in signature(DistributedDataParallel.__init__).parameters
)
SECONDS_BETWEEN_MEETINGS = 0.5
STEPS_BETWEEN_MEETINGS = 25
MEETING_POLL_S = 0.02
MEETING_TIMEOUT = timedelta(seconds=300)
"""How long a rank waits for the others to come."""
COLLECTIVE_TIMEOUT = timedelta(seconds=900)
"""How long a collective waits for a rank. Longer than a rank may compile (`FIRST_STEP_S`): the
watchdog names a rank that hangs, and launchers notice a lost one, long before."""


def elastic_store() -> Store:
    """The store where ranks meet, on the launcher's socket: torch would listen on all addresses."""
    listener = os.environ.get(LISTENER)
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=listener is not None,
        master_listen_fd=int(listener) if listener else None,
        wait_for_workers=False,
        timeout=MEETING_TIMEOUT,
    )


def store_of_variables() -> Store:
    """The store that torchrun's variables name. Raises BadRequest if the others do not come."""
    try:
        store: Store = next(rendezvous("env://", timeout=MEETING_TIMEOUT))[0]
        return store
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise BadRequest(
            f"the ranks that RANK and WORLD_SIZE speak of do not meet at MASTER_ADDR:MASTER_PORT "
            f"({place}): start them all, or unset these variables ({one_line(str(error))})"
        ) from error


def await_all(file: str, world: int, stop: StopRequest) -> None:
    """Wait for all ranks of this machine. Raises StopNow where a stop is requested before they are
    here: then none of them goes on, as inside torch it would wait for the others and hear no
    signal. The first rank that sees all, or is to stop, decides for all. Raises StokerError."""
    store, give_up = FileStore(f"{file}.here", world), time.monotonic() + COLLECTIVE_TIMEOUT.seconds
    here = store.add("here", 1)
    while True:
        if here == world and store.compare_set("decision", "", "go") == b"go":
            return
        if stop and store.compare_set("decision", "", "leave") == b"leave":
            raise StopNow
        if time.monotonic() > give_up:
            raise StokerError(
                f"{here} of {plural(world, 'rank')} came within {COLLECTIVE_TIMEOUT}: see what the "
                "others do, or start fewer --ranks"
            )
        time.sleep(MEETING_POLL_S)
        here = store.add("here", 0)


def own_device(local_rank: int, local_world: int) -> torch.device:
    """The device of a rank: its GPU, which works, or the CPU where there is none. Raises BadRequest
    if GPUs are missing or do not work."""
    if not torch.cuda.is_available():
        # A PyTorch without CUDA was chosen; `idle_gpus` says what it leaves unused.
        if torch.version.cuda and (gpus := gpus_at_hand()):
            raise BadRequest(unusable_gpus(gpus))
        return torch.device("cpu")
    gpus, number = torch.cuda.device_count(), local_rank
    if gpus == 1 and "CUDA_VISIBLE_DEVICES" in os.environ and not shares_variables():
        number = 0  # a scheduler gives each task a GPU of its own, which is number 0 there
    if number >= gpus:
        are = "is 1" if gpus == 1 else f"are {gpus}"
        raise BadRequest(
            f"{local_world} ranks need a GPU each, and there {are}: lower --ranks to {gpus}"
        )
    device = torch.device("cuda", number)
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        raise BadRequest(
            f"GPU {number} does not work: choose others with CUDA_VISIBLE_DEVICES, or set it to "
            f"nothing to train on the CPU ({one_line(str(error))})"
        ) from error
    return device


def shares_variables() -> bool:
    """Whether all ranks of this machine have the same variables: a launcher started them."""
    return is_rank() or "TORCHELASTIC_RUN_ID" in os.environ


def unusable_gpus(gpus: int) -> str:
    """What to tell the user about GPUs that PyTorch cannot use."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "it finds none"
    except (RuntimeError, AssertionError) as error:
        reason = one_line(str(error))
    driver = nvidia_driver()
    return (
        f"PyTorch {torch.__version__} cannot use the {plural(gpus, 'GPU')} of this machine"
        f"{f' (driver {driver})' if driver else ''}: update the driver, or install a PyTorch for "
        f"it; CUDA_VISIBLE_DEVICES= (set to nothing) trains on the CPU ({reason})"
    )


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and its device."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    device: torch.device

    @classmethod
    def join(cls, threads: int = 0, stop: StopRequest | None = None) -> Ranks:
        """Join the ranks of our launcher or torchrun. `threads` compute on a CPU; 0: as many as
        there are cores for this rank. Raises BadRequest if GPUs are missing, StopNow at a stop
        request while another rank of this machine is not here yet."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0"))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        device = own_device(local_rank, local_world)
        if device.type == "cpu":
            torch.set_num_threads(threads or max(1, usable_cores() // local_world))
        if world > 1:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            file = os.environ.get(RENDEZVOUS_FILE)
            if file and stop is not None:
                await_all(file, world, stop)
            meeting: dict[str, Any] = {"init_method": f"file://{file}"}
            # NCCL connects here, where an error is still an exception, and not in a step.
            device_id = device if device.type == "cuda" else None
            if ELASTIC in os.environ:
                store = elastic_store()
                # NCCL asks the store from threads of its own, which a Python store could block.
                if device.type == "cpu":
                    store = signed_for_ranks(store)
                meeting = {"store": store}
            elif not file:
                meeting = {"store": store_of_variables()}
            dist.init_process_group(
                backend,
                rank=rank,
                world_size=world,
                timeout=COLLECTIVE_TIMEOUT,
                device_id=device_id,
                **meeting,
            )
        return cls(rank, world, local_rank, local_world, device)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def leave(self, *, failed: bool = False) -> None:
        """Leave the process group. After a failure NCCL would wait for collectives that never end:
        then the group ends with the process."""
        if self.world > 1 and not (failed and self.device.type == "cuda"):
            dist.destroy_process_group()

    def sum(self, numbers: Tensor) -> Tensor:
        """Sums over all ranks."""
        if self.world > 1:
            dist.all_reduce(numbers, dist.ReduceOp.SUM)
        return numbers

    def gather_rows(self, rows: Tensor, sizes: list[int]) -> Tensor | None:
        """On rank 0 the rows of all ranks, one rank after the other; None elsewhere. `sizes` has
        the number of rows of each rank."""
        if self.world == 1:
            return rows
        # Ranks send equally many rows: the longest share, which shorter ones are padded to.
        sent = rows.new_zeros((max(sizes), *rows.shape[1:]))
        sent[: len(rows)] = rows
        parts = [torch.empty_like(sent) for _ in sizes] if self.first else None
        dist.gather(sent, parts)
        if parts is None:
            return None
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def largest(self, numbers: list[int]) -> list[int]:
        """For each index of the list, the largest number that any rank has there."""
        if self.world == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return [int(number) for number in tensor]

    def from_first(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        return self.largest([number if self.first else -(1 << 62)])[0]

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self.largest([0])

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the running statistics of rank 0, which are the ones that are saved."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the ranks."""
        if self.world == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        # Only rank 0's running statistics count: they are shared before evaluations, not in steps.
        options: dict[str, Any] = {SYNCS_BUFFERS: False, "gradient_as_bucket_view": True}
        return DistributedDataParallel(model, device_ids=ids, **options)

    def watch_exchange(self, wrapped: nn.Module, spans: Spans) -> GradientExchange | None:
        """Meters the gradient exchange from the first backward pass on; None for one rank."""
        if not isinstance(wrapped, DistributedDataParallel):
            return None
        return GradientExchange(spans, wrapped)

    def settle(self, wrapped: nn.Module, model: nn.Module, image_size: int) -> None:
        """Let DDP decide on its buckets before the first real step, by two passes that are undone.
        DDP reorders its buckets after its first backward pass. With three or more ranks that
        changes the order of summation, so a resumed run would differ in the last bit."""
        if self.world == 1:
            return
        blank = blank_images(image_size, self.device)
        with buffers_restored(model):
            for _ in range(2):
                wrapped(blank).sum().backward()
                wrapped.zero_grad(set_to_none=True)


@dataclass
class Agreement:
    """A vote of all ranks, about twice a second and at least every few steps. All ranks call `poll`
    at the same points; it runs a collective only at some of them. Rank 0's clock decides when the
    next one is, and that decision travels in the same collective. Each rank writes its events to
    disk before it takes part: of all steps on a CPU, of those that are finished on a GPU. So once
    ranks have met, every step before this point is on record on a CPU. On a GPU the loop writes the
    rest before it saves: a checkpoint is never ahead of the events."""

    ranks: Ranks
    before_meeting: Callable[[], object]
    clock: Callable[[], float] = time.monotonic
    met: bool = False
    """Whether the ranks met at the latest poll."""
    due: bool = False
    """Whether the ranks agreed there to save."""

    def __post_init__(self) -> None:
        self.meet_next()

    def meet_next(self) -> None:
        """Meet at the next poll: from here on polls come at another rate."""
        self._skip = self._polls = 0
        self._met_at = self.clock()

    @property
    def meets_next(self) -> bool:
        """Whether the ranks meet at the next poll."""
        return self.ranks.world == 1 or self._polls >= self._skip

    def poll(self, vote: int, due: bool = False) -> int:
        """The highest vote of all ranks; 0 if they do not meet here. Sets `due` to rank 0's."""
        self.due = False
        if self.ranks.world == 1:
            self.met, self.due = True, due
            return vote
        self._polls += 1
        self.met = self._polls > self._skip
        if not self.met:
            return 0
        self.before_meeting()
        now = self.clock()
        polls_per_s = self._polls / max(now - self._met_at, 1e-6)
        # The rate of the first steps is not typical: the interval at most doubles.
        skip = min(int(polls_per_s * SECONDS_BETWEEN_MEETINGS), 2 * self._skip + 1)
        skip = min(skip, STEPS_BETWEEN_MEETINGS - 1)
        proposal = (skip, int(due)) if self.ranks.first else (0, 0)
        agreed, self._skip, save = self.ranks.largest([vote, *proposal])
        self.due, self._met_at, self._polls = bool(save), now, 0
        return agreed
