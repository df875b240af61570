"""Compiling before it counts.

Invariant: a compiled network is compiled for the shapes of a batch before that batch is trained on,
over blank images, and everything that this changes is put back: compiling leaves no trace in the
result. It can take minutes inside a compiler that nobody can interrupt in order, so everything is
saved before, and a wish to stop ends the process there and then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from stoker.recipe.schedule import Batch
from stoker.survive.stopping import StopRequest
from stoker.train.step import AMP_TYPES, Step


@dataclass
class WarmUp:
    """Compiles for each new shape, where the recipe compiles at all."""

    step: Step
    stop: StopRequest
    leave: Callable[[], None]
    """Ends this process; everything is saved."""
    _ready: set[tuple[int, int]] = field(default_factory=set)

    def is_new(self, batch: Batch) -> bool:
        """Whether a batch has a shape that nothing is compiled for: the same on every rank."""
        compiles = self.step.recipe.compile
        return compiles and (batch.size, batch.image_size) not in self._ready

    def __call__(self, batch: Batch) -> None:
        """Compile; each rank makes exactly one pass in which gradients are exchanged."""
        for images, last in self._sizes(batch):
            with self.stop.at_once(self.leave), self.step.spans("compile"):
                self._compile(images, last, batch.image_size)
        self._ready.add((batch.size, batch.image_size))

    def _sizes(self, batch: Batch) -> list[tuple[int, bool]]:
        """How many images the network sees at once in the micro-batches of a batch, and whether
        ranks exchange gradients then: a compiler takes both for different."""
        *others, last = self.step.held_at_once(batch)
        return sorted({*((images, False) for images in others), (last, True)})

    def _compile(self, images: int, last: bool, image_size: int) -> None:
        step, device = self.step, self.step.ranks.device
        model, amp = step.state.model, step.recipe.amp
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        layout = torch.channels_last if step.recipe.channels_last else torch.contiguous_format
        blank = torch.zeros(images, 3, image_size, image_size, device=device)
        try:
            with (
                step.exchange_gradients(last),
                torch.autocast(device.type, AMP_TYPES.get(amp), amp in AMP_TYPES),
            ):
                step.wrapped(blank.to(memory_format=layout)).float().sum().backward()
        finally:
            model.zero_grad(set_to_none=True)
            model.load_state_dict(before)
