"""This process among its peers: device, rank, and the few things ranks say to each other.

Invariants: one process alone needs no process group and pays for none. Ranks exchange small
numbers over gloo, in main memory, at points that all of them reach in the same order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import BadRequest
from stoker.fleet.launcher import ELASTIC, LISTENER, RENDEZVOUS_FILE
from stoker.host.limits import usable_cores
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Spans

SECONDS_BETWEEN_MEETINGS = 0.5
STEPS_BETWEEN_MEETINGS = 25
PATIENCE = timedelta(seconds=300)
"""How long ranks of an elastic run wait for one that hangs. That a node is lost, their launcher
knows much sooner; this is for a rank that is stuck while its launcher lives."""


def elastic_store() -> Store:
    """Where the ranks of a round meet: rank 0 through the door that its launcher has opened, which
    is on one address only; torch by itself would listen on all."""
    door = os.environ.get(LISTENER)
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=door is not None,
        master_listen_fd=int(door) if door else None,
        wait_for_workers=False,
        timeout=PATIENCE,
    )


@dataclass(frozen=True)
class Ranks:
    """Who this process is."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    device: torch.device

    @classmethod
    def join(cls) -> Ranks:
        """Meet the other ranks that the environment (our launcher, or torchrun) announces."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0"))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if torch.cuda.is_available():
            if local_rank >= torch.cuda.device_count():
                raise BadRequest(
                    f"{local_world} ranks but {torch.cuda.device_count()} GPUs: lower --ranks"
                )
            device = torch.device("cuda", local_rank)
            torch.cuda.set_device(device)
        else:
            device = torch.device("cpu")
            torch.set_num_threads(max(1, usable_cores() // local_world))
        if world > 1:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            if ELASTIC in os.environ:
                dist.init_process_group(
                    backend, store=elastic_store(), rank=rank, world_size=world, timeout=PATIENCE
                )
            else:
                meeting = os.environ.get(RENDEZVOUS_FILE)
                where = f"file://{meeting}" if meeting else "env://"
                dist.init_process_group(backend, init_method=where, rank=rank, world_size=world)
        return cls(rank, world, local_rank, local_world, device)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()

    def sum(self, numbers: Tensor) -> Tensor:
        """Sums over all ranks."""
        if self.world > 1:
            dist.all_reduce(numbers, dist.ReduceOp.SUM)
        return numbers

    def largest(self, numbers: list[int]) -> list[int]:
        """For each place of a list, the largest number that any rank has there."""
        if self.world == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return [int(number) for number in tensor]

    def from_first(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        return self.largest([number if self.first else -(1 << 62)])[0]

    def meet(self) -> None:
        """Go on when all ranks are here."""
        self.largest([0])

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the running statistics of rank 0, which are the ones that are saved."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The network with gradients averaged over the ranks."""
        if self.world == 1:
            return model
        ids = [self.local_rank] if self.device.type == "cuda" else None
        # Running statistics are rank 0's: shared where they are read, in evaluations, not sent
        # around every step.
        return DistributedDataParallel(
            model, device_ids=ids, gradient_as_bucket_view=True, forward_sync_buffers=False
        )

    def watch_exchange(self, wrapped: nn.Module, spans: Spans) -> GradientExchange | None:
        """Measure how long gradients travel; to be called before the first backward pass."""
        if not isinstance(wrapped, DistributedDataParallel):
            return None
        return GradientExchange(spans, wrapped)

    def settle(self, wrapped: nn.Module, model: nn.Module, image_size: int) -> None:
        """Let DDP decide on its buckets before the first real step.

        DDP reorders its buckets after its first backward pass. With three or more ranks that
        changes the order of summation, so a resumed run would differ in the last bit from one
        that was never interrupted. One pass over blank images, undone afterwards, puts that
        moment before step 1 of every attempt.
        """
        if self.world == 1:
            return
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        blank = torch.zeros(2, 3, image_size, image_size, device=self.device)
        for _ in range(2):
            wrapped(blank).sum().backward()
            wrapped.zero_grad(set_to_none=True)
        model.load_state_dict(before)


class Agreement:
    """All ranks answer the same question, about twice a second and at least every few steps.

    `poll` is called at the same points by all ranks and runs a collective only when its turn has
    come; rank 0's clock decides when the next turn is, and that decision travels in the same
    collective. Each rank puts its events on disk before it takes part: once ranks have met, every
    step before this point is on record, and a checkpoint taken here can never be ahead of it.
    """

    def __init__(self, ranks: Ranks, before_meeting: Callable[[], object]) -> None:
        self._ranks = ranks
        self._before_meeting = before_meeting
        self._polls = 0
        self._skip = self._next = 0
        self._met_at = time.monotonic()
        self._met_poll = 0
        self.met = False
        """Whether the ranks met at the latest poll."""
        self.due = False
        """Whether they agreed there to save."""

    def meet_next(self) -> None:
        """Meet at the very next poll: from here on polls come at another pace."""
        self._skip, self._next = 0, self._polls
        self._met_at, self._met_poll = time.monotonic(), self._polls

    def poll(self, wish: int, due: bool = False) -> int:
        """The most urgent wish of any rank, and whether rank 0 finds that a save is due. The same
        answer on every rank."""
        self.due = False
        if self._ranks.world == 1:
            self.met, self.due = True, due
            return wish
        self._polls += 1
        self.met = self._polls > self._next
        if not self.met:
            return 0
        self._before_meeting()
        now = time.monotonic()
        pace = (self._polls - self._met_poll) / max(now - self._met_at, 1e-6)
        # The first steps tell little of the pace: a pause at most doubles.
        skip = min(int(pace * SECONDS_BETWEEN_MEETINGS), 2 * self._skip + 1)
        skip = min(skip, STEPS_BETWEEN_MEETINGS - 1)
        said = (skip, int(due)) if self._ranks.first else (0, 0)
        agreed, skip, save = self._ranks.largest([wish, *said])
        self.due = bool(save)
        self._met_at, self._met_poll = now, self._polls
        self._skip, self._next = skip, self._polls + skip
        return agreed
