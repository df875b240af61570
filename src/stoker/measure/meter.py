"""Stoker's measurements and verdicts for any PyTorch loop.

    meter = Meter(model)
    for images, labels in meter.batches(loader):
        with meter("forward"):
            loss = criterion(model(images), labels)
        with meter("backward"):
            loss.backward()
        with meter("optimiser"):
            optimizer.step()
    print(*meter.verdict().lines(), sep="\\n")

Invariant: a step begins when its batch is requested and ends when the next one is; its parts add up
to it. If the model is wrapped in DDP, what the gradient exchange adds to the backward pass is a
part of its own. (DDP takes one communication hook: a model that already has one keeps it, and its
exchange is not measured.)
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.host.limits import usable_cores
from stoker.measure.clocks import clock_of
from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import AttemptSums
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Lap, Spans
from stoker.measure.verdict import Verdict, verdict_of
from stoker.measure.verdict_text import loop_actions

Batch = TypeVar("Batch")

KEPT = 1000
"""A verdict is about this many of the latest steps."""


class Meter(Spans):
    """Divides the steps of a loop into parts, and tells what limits it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(clock_of(next(model.parameters(), torch.empty(0)).device))
        self._laps: list[tuple[Lap, dict[str, Any]]] = []
        self._steps = 0
        self._world = 1
        self._num_workers: int | None = None
        self._exchange: GradientExchange | None = None
        if isinstance(model, DistributedDataParallel):
            self._world = dist.get_world_size()
            with suppress(RuntimeError):  # it already has a hook
                self._exchange = GradientExchange(self, model)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader; from the request of one to the request of the next is a step."""
        # Not every iterable is a DataLoader.
        self._num_workers = getattr(loader, "num_workers", None)
        upcoming = iter(loader)
        while True:
            self.lap()
            with self("data"):
                try:
                    batch = next(upcoming)
                except StopIteration:
                    return
            yield batch
            step: dict[str, Any] = {"kind": "step", "step": self._steps, "batch": 0}
            if self._exchange:
                sent, seconds = self._exchange.take()
                step["sent"] = {"bytes": sent, "seconds": seconds}
            self._laps.append((self.lap(), step))
            self._steps += 1
            del self._laps[:-KEPT]

    def facts(self) -> Facts | None:
        """What this process has measured; None before enough steps. Waits for the device."""
        sums = AttemptSums()
        environment = {"cores": usable_cores(), "threads": torch.get_num_threads()}
        start = {"kind": "attempt", "step": 0, "environment": environment, "world": self._world}
        sums.add(0, start)
        # The CPU time of worker processes is not ours to see: they would look like other programs.
        alone = not self._num_workers and not multiprocessing.active_children()
        for lap, step in self._laps:
            times = lap.times() if alone else {**lap.times(), "cores": {}}
            sums.add(0, {**step, **times})
        return sums.facts()

    def verdict(self) -> Verdict | None:
        """What limits this loop, with advice for it; None before enough steps."""
        verdict = verdict_of(self.facts())
        actions = loop_actions(self._num_workers, usable_cores())
        return replace(verdict, actions=actions) if verdict else None
