"""Compilation before the first step of each batch shape.

Invariant: a compiled model is compiled for the shapes of a batch before that batch is trained on,
with blank images. Everything that this changes is put back: compilation leaves no trace in the
result. It can take minutes inside a compiler that cannot be interrupted cleanly. So everything is
saved before, and a stop request during compilation ends the process at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stoker.recipe.schedule import Batch
from stoker.survive.stopping import StopRequest
from stoker.train.device import memory_format
from stoker.train.passes import blank_images, buffers_restored, forward
from stoker.train.step import Step


@dataclass
class Compilation:
    """Compiles the model for each new batch shape, if the recipe asks for compilation."""

    step: Step
    stop: StopRequest
    leave: Callable[[], None]
    """Ends this process; everything is saved."""
    _ready: set[tuple[int, int]] = field(default_factory=set)

    def is_needed(self, batch: Batch) -> bool:
        """Whether this batch has a shape that is not compiled yet; the same on every rank."""
        return self.step.recipe.compile and (batch.size, batch.image_size) not in self._ready

    def __call__(self, batch: Batch) -> None:
        """Compile; each rank makes exactly one pass in which gradients are exchanged."""
        *others, last = self.step.micro_batch_sizes(batch)
        # The compiler compiles passes with and without a gradient exchange separately.
        for images, exchanges in sorted({*((images, False) for images in others), (last, True)}):
            with self.stop.at_once(self.leave), self.step.spans("compile"):
                self._compile(images, exchanges, batch.image_size)
        self._ready.add((batch.size, batch.image_size))

    def _compile(self, images: int, exchanges: bool, image_size: int) -> None:
        step, model = self.step, self.step.state.model
        blank = blank_images(image_size, step.ranks.device, images)
        blank = blank.to(memory_format=memory_format(step.recipe))
        with buffers_restored(model):
            try:
                with step.exchange_gradients(exchanges):
                    forward(step.wrapped, blank, step.recipe.amp).sum().backward()  # type: ignore[no-untyped-call]
            finally:
                model.zero_grad(set_to_none=True)
