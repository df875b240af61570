"""A trial of each new batch shape before its first step: does it fit, and is it compiled?

Invariants: a trial passes blank images through the model, forward and backward, as the step will.
Everything that this changes is put back: a trial leaves no trace in the result. Ranks exchange no
gradients in it, so one that runs out of memory keeps none waiting; then all of them vote. On a GPU
every new shape is tried, on a CPU those that are to be compiled. Compilation can take minutes in a
compiler that cannot be interrupted cleanly. So everything is saved before, and a stop request ends
the process at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stoker import faults
from stoker.errors import StokerError
from stoker.host.out_of_memory import is_out_of_memory
from stoker.recipe.schedule import Batch, Timeline
from stoker.survive.remedies import MEMORY, Trouble
from stoker.survive.stopping import StopRequest
from stoker.text import one_line
from stoker.train.passes import buffers_restored, forward
from stoker.train.step import Step

GRAPHS_PER_SHAPE = 8
"""A bound: three micro-batch sizes, one of them with a gradient exchange as well, and as many for
other reasons to compile."""
LIMITS = ("recompile_limit", "accumulated_recompile_limit")
EARLIER_LIMITS = ("cache_size_limit", "accumulated_cache_size_limit")
"""How many graphs PyTorch compiles for one model, and for all; and how earlier versions say it."""


def limits() -> tuple[str, str]:
    """The settings of this PyTorch that bound the number of graphs: of one model, and of all."""
    return LIMITS if hasattr(torch._dynamo.config, LIMITS[0]) else EARLIER_LIMITS


def compile_model(
    model: nn.Module, timeline: Timeline, backend: str | Callable[..., Any] = "inductor"
) -> nn.Module:
    """The model, compiled for each shape of a timeline when that shape comes. PyTorch gives up
    after some graphs and runs the model uncompiled: its limit has to cover all shapes. Graphs of an
    earlier attempt, for another micro-batch, are dropped."""
    torch._dynamo.reset()
    config: Any = torch._dynamo.config
    shapes = {(stretch.batch_size, stretch.image_size) for stretch in timeline.stretches}
    for limit in limits():
        setattr(config, limit, max(getattr(config, limit), GRAPHS_PER_SHAPE * len(shapes)))
    # Each shape by itself: a graph for any size would depend on the sizes that came before.
    compiled: nn.Module = torch.compile(model, dynamic=False, backend=backend)  # type: ignore[assignment]
    return compiled


@dataclass
class ShapeTrial:
    """Tries each new batch shape, and compiles for it if the recipe asks for that."""

    step: Step
    stop: StopRequest
    leave: Callable[[], None]
    """Ends this process; everything is saved."""
    _ready: set[tuple[int, int]] = field(default_factory=set)

    @property
    def compiles(self) -> bool:
        return self.step.recipe.compile

    def is_needed(self, batch: Batch) -> bool:
        """Whether this batch has a shape to be tried; the same on every rank."""
        on_gpu = self.step.ranks.device.type == "cuda"
        tries = self.compiles or on_gpu or faults.is_armed("trial")
        return tries and (batch.size, batch.image_size) not in self._ready

    def forget(self) -> None:
        """Try each shape again: more weights are trained from here on."""
        self._ready.clear()

    def __call__(self, batch: Batch) -> None:
        """Try a shape. Raises Trouble that all ranks agree on if any of them runs out of memory."""
        step, sizes = self.step, self.step.micro_batch_sizes(batch)
        fits = self._passes(at_most_twice(sizes), batch.image_size, exchanges=False)
        number = step.ranks.largest([0 if fits else step.ranks.rank + 1])[0]
        if number:
            raise Trouble(MEMORY, batch.step, f"on rank {number - 1}")
        # The compiler compiles passes with and without a gradient exchange separately.
        exchanges = self.compiles and step.ranks.world > 1
        if exchanges and not self._passes(sizes[-1:], batch.image_size, exchanges=True):
            raise step.out_of_memory(batch.step)
        self._ready.add((batch.size, batch.image_size))

    def _passes(self, sizes: Iterable[int], image_size: int, *, exchanges: bool) -> bool:
        """Pass blank micro-batches of these sizes through the model; whether memory sufficed.
        Raises StokerError where the compiler fails."""
        step, model = self.step, self.step.state.model
        at_once = self.stop.at_once(self.leave) if self.compiles else nullcontext()
        try:
            with at_once, step.spans("compile" if self.compiles else "measuring"):
                with buffers_restored(model), step.exchange_gradients(exchanges):
                    for images in sizes:
                        self._pass(images, image_size)
        except Exception as error:
            if is_out_of_memory(error):
                return False
            if not isinstance(error, torch._dynamo.exc.BackendCompilerFailed):
                raise
            reason = one_line(str(error).replace("raised:\n", "raised: "))
            raise StokerError(
                f"the model cannot be compiled ({reason}): install g++ if there is "
                "no compiler, or drop --compile"
            ) from error
        finally:
            model.zero_grad(set_to_none=True)
        return True

    def _pass(self, images: int, image_size: int) -> None:
        step = self.step
        # As the step makes it: another precision or layout would be compiled once more.
        blank = step.blank_input(images, image_size)
        logits = forward(step.wrapped, blank, step.recipe.amp)
        faults.reach("trial")
        logits.sum().backward()  # type: ignore[no-untyped-call]


def at_most_twice(sizes: Iterable[int]) -> list[int]:
    """The sizes in order, each at most twice: a second pass has the gradients of the first."""
    counts: Counter[int] = Counter()
    chosen = []
    for size in sizes:
        counts[size] += 1
        if counts[size] <= 2:
            chosen.append(size)
    return chosen
