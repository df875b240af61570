"""Numbers that are not finite and memory that runs out, made on purpose.

Invariant: what is checked is the outcome, as a user would notice it: which step was named, which
weights remain, whether the run finished and what its record says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stoker.data.loading.loader import Loaded
from stoker.doctor.selftest.commands import Train
from stoker.doctor.selftest.rows import Measured, NotRun, Setup
from stoker.errors import FINISHED, INTERRUPTED
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch, Timeline
from stoker.survive.divergence import LATE_STEPS, Sentinel
from stoker.survive.remedies import FILE, NOT_FINITE, Remedies, Trouble
from stoker.train.device import build_on_device, set_arithmetic
from stoker.train.mixing import Mix
from stoker.train.model_input import input_maker
from stoker.train.optim import build_optimizer
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials.compute import NO_RUN

CLASSES, IMAGES, SIDE = 10, 16, 32
STEPS_AFTER = 3
BAD_STEP = 5
CLOSE = 1e-3
"""The largest difference of weights that rounding in 16 bits can make in a few steps."""
ATTEMPTS = 3
"""Commands that a run may need after it ran out of memory."""


@dataclass
class PoisonedStep:
    """The step of training, as a GPU makes it: with a fused optimiser, sums read late, and images
    that are infinite in some steps."""

    setup: Setup
    recipe: Recipe
    bad_steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        set_arithmetic(self.recipe)
        ranks, recipe = self.setup.ranks, self.recipe
        model, normalise = build_on_device(recipe, CLASSES, ranks.device)
        self.state = TrainState.fresh(recipe, model, ranks.device)
        self._to_input = input_maker(normalise, ranks.device, recipe.channels_last, recipe.amp)
        timeline = Timeline.of(recipe, 100 * IMAGES)
        remedies = Remedies(NO_RUN)
        self.step = Step(recipe, timeline, ranks, self.state, model, self._input, remedies)
        if not self.setup.on_gpu:
            self.state.optimizer = build_optimizer(recipe, model, fused=True)
            self.step.late_steps, self.step.sentinel = LATE_STEPS, Sentinel(LATE_STEPS)
        model.train()

    def _input(self, images: Tensor, mix: Mix | None) -> Tensor:
        made = self._to_input(images, mix)
        return made * float("inf") if self.state.step in self.bad_steps else made

    def __call__(self, number: int) -> None:
        """Make the step of this number. Raises Trouble."""
        self.state.step = number
        draw = np.random.default_rng(number)
        images = draw.integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
        numbers, epochs = np.arange(IMAGES), np.zeros(IMAGES, np.int64)
        batch = Batch(number, number * IMAGES, IMAGES, SIDE)
        self.step(Loaded(batch, images, numbers % CLASSES, numbers, epochs))

    def weights(self) -> list[Tensor]:
        return [weight.detach().clone() for weight in self.state.model.parameters()]


def small_recipe(**keys: str) -> Recipe:
    return Recipe(model="resnet9_w4", image_size=SIDE, batch_size=IMAGES, epochs=1, **keys)  # type: ignore[arg-type]


def largest_difference(some: list[Tensor], others: list[Tensor]) -> float:
    """NaN where one of the weights is."""
    pairs = zip(some, others, strict=True)
    return float(torch.stack([(one - other).abs().max() for one, other in pairs]).max())


def measure_overflow(setup: Setup) -> Measured:
    """An overflow in the first step: it is skipped, and the next ones are those of a run in which
    it never was. On a CPU in 32 bits, where the same flag skips the step of a fused optimiser."""
    amp = "fp16" if setup.on_gpu else "off"
    worst = 0.0
    for optimizer in ("sgd", "adamw"):
        recipe = small_recipe(amp=amp, optimizer=optimizer, on_divergence="off")
        poisoned, clean = PoisonedStep(setup, recipe, (0,)), PoisonedStep(setup, recipe)
        before = poisoned.weights()
        poisoned(0)
        changed = largest_difference(before, poisoned.weights())
        for step in range(1, 1 + STEPS_AFTER):
            poisoned(step)
            clean(step)
        later = largest_difference(clean.weights(), poisoned.weights())
        worst = max(worst, *(d if d == d else float("inf") for d in (changed, later)))
    value = f"step 1 skipped, then at most {worst:.1e} from a run without it (SGD, AdamW, {amp})"
    return Measured(value, f"at most {CLOSE:g}", worst <= CLOSE, {"difference": worst})


def measure_nan(setup: Setup) -> Measured:
    """A gradient that is not finite: no weight changes, and the step is named soon."""
    poisoned = PoisonedStep(setup, small_recipe(), (BAD_STEP,))
    for step in range(BAD_STEP):
        poisoned(step)
    before = poisoned.weights()
    after: list[Tensor] = []
    for step in range(BAD_STEP, BAD_STEP + LATE_STEPS + 1):
        try:
            poisoned(step)
        except Trouble as trouble:
            late = step - BAD_STEP
            after = after or poisoned.weights()
            untouched = all(map(torch.equal, before, after))
            right = trouble.kind == NOT_FINITE and trouble.step == BAD_STEP
            value = f"named {late} steps later, weights {'un' if untouched else ''}changed"
            holds = untouched and right and late <= LATE_STEPS
            return Measured(value, f"within {LATE_STEPS} steps", holds, {"late_steps": late})
        after = after or poisoned.weights()
    return Measured("not noticed", f"within {LATE_STEPS} steps", False)


def measure_no_memory(setup: Setup, place: str) -> Measured:
    """A run whose memory ends once: it finishes with smaller micro-batches."""
    compiles = place == "compile"
    if compiles and setup.quick:
        raise NotRun("--quick leaves out what compiles")
    flags = f"--epochs 1{' --compile' if compiles else ''}"
    train = Train(setup, f"no-memory-{place}", flags)
    fault = {"fault": "exhaust", "at": place}
    codes = [train.finish(fault if compiles else {**fault, "step": 2})]
    while codes[-1] == INTERRUPTED and len(codes) < ATTEMPTS:
        codes.append(train.finish())
    train.require(codes[-1], [FINISHED])
    file = train.run.path / FILE
    remedies = json.loads(file.read_text()) if file.exists() else []
    sizes = [(r["before"], r["after"]) for r in remedies if r["kind"] == "micro_batch"]
    cuts = ", ".join(f"{after} images at once, not {before}" for before, after in sizes)
    means = "real" if setup.on_gpu else "injected"
    value = f"finished with {cuts or 'no smaller micro-batch'} ({means}; exit codes {codes})"
    figures = {"codes": codes, "micro_batches": sizes}
    return Measured(value, "finishes with a smaller micro-batch", bool(sizes), figures)


MEMORY_PLACES = {
    "no-memory-forward": partial(measure_no_memory, place="forward"),
    "no-memory-backward": partial(measure_no_memory, place="gradient"),
    "no-memory-compile": partial(measure_no_memory, place="compile"),
}
"""`gradient`: late in the backward pass, when ranks have exchanged most gradients."""
