"""The same measurements in anybody's PyTorch loop.

    meter = Meter(model)
    for images, labels in meter.batches(loader):
        with meter("forward"):
            loss = criterion(model(images), labels)
        with meter("backward"):
            loss.backward()
        with meter("optimiser"):
            optimizer.step()
    print(*meter.verdict().lines(), sep="\\n")

Invariant: a step begins where its batch is asked for and ends where the next one is; its parts add
up to it. Where the model is wrapped in DDP, what the exchange of gradients adds to the backward
pass is a part of its own. (DDP takes one communication hook: a model that has one keeps it, and
tells nothing of its exchange.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.host.limits import usable_cores
from stoker.measure.clocks import clock_of
from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import Gathered
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Lap, Spans
from stoker.measure.verdict import Verdict, judge

Thing = TypeVar("Thing")

KEPT = 1000
"""Steps that a verdict is about: the latest."""


class Meter(Spans):
    """Cuts the steps of a loop into parts, and says what binds it."""

    def __init__(self, model: nn.Module) -> None:
        weight = next(model.parameters(), torch.empty(0))
        super().__init__(clock_of(weight.device))
        self._laps: list[tuple[Lap, dict[str, Any]]] = []
        self._steps = 0
        self._world = 1
        self._exchange: GradientExchange | None = None
        if isinstance(model, DistributedDataParallel):
            self._world = dist.get_world_size()
            with suppress(RuntimeError):  # it has a hook already
                self._exchange = GradientExchange(self, model)

    def batches(self, loader: Iterable[Thing]) -> Iterator[Thing]:
        """The batches of a loader; what is done between two of them is a step."""
        coming = iter(loader)
        while True:
            self.lap()
            with self("data"):
                try:
                    batch = next(coming)
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
        """What was measured, as far as this process can tell. Waits for the device."""
        seen = Gathered()
        environment = {"cores": usable_cores(), "threads": torch.get_num_threads()}
        start = {"kind": "attempt", "step": 0, "environment": environment, "world": self._world}
        seen.add(0, start)
        for lap, step in self._laps:
            seen.add(0, {**step, "parts": lap.parts(), "on_cpu": lap.on_cpu()})
        return seen.facts()

    def verdict(self) -> Verdict | None:
        """What binds this loop; None where it has not made enough steps to tell."""
        return judge(self.facts())
