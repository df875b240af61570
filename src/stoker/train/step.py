"""One step of the optimiser: data -> device -> forward -> backward -> optimiser.

Invariants: a step is a function of the state and the position: the learning rate, the crops, the
mixing and the dropout all follow from the position. The weights do not change before the gradient
of the whole batch is known to be finite. A rank that runs out of memory raises Trouble; other ranks
do not know of it, for it may have come in the middle of the gradient exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from stoker import faults
from stoker.chance import seed_of
from stoker.data.loading.loader import Loaded
from stoker.host.out_of_memory import is_out_of_memory
from stoker.measure.gradient_exchange import GradientExchange
from stoker.measure.spans import Spans
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch, Timeline, cuts, learning_rate, micro_cuts
from stoker.survive.divergence import LATE_STEPS, PendingStep, Sentinel
from stoker.survive.remedies import MEMORY, NOT_FINITE, Remedies, Trouble
from stoker.train.device import LateNumbers, seed_device
from stoker.train.evaluate import hits
from stoker.train.mixing import draw_mix, mixes, partners
from stoker.train.model.freeze import NOTHING, Freeze, is_trained
from stoker.train.model_input import MakeInput
from stoker.train.optim import (
    clip_gradients,
    gradient_norm,
    set_learning_rate,
    skips_on_device,
)
from stoker.train.passes import forward
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState
from stoker.train.transfer import BatchTransfer, DeviceBatch, transfer_to


@dataclass
class Step:
    """This rank's part of a step."""

    recipe: Recipe
    timeline: Timeline
    ranks: Ranks
    state: TrainState
    wrapped: nn.Module
    to_input: MakeInput
    remedies: Remedies
    spans: Spans = field(default_factory=Spans)
    exchange: GradientExchange | None = None
    transfer: BatchTransfer | None = None
    """How batches get to the device; without it, as the device needs it."""
    class_weights: Tensor | None = None
    """How much an image of each class counts in the gradient; without it, all count the same."""
    freeze: Freeze = NOTHING
    wrap: Callable[[], tuple[nn.Module, GradientExchange | None]] | None = None
    """Wraps the model again, where other weights are to be trained."""

    def __post_init__(self) -> None:
        self.batches = self.transfer or transfer_to(self.ranks.device)
        self._use_wrapped()
        self.rate = 0.0
        """The learning rate of the latest step, before the factors of layers."""
        self.micro_batch = self.remedies.micro_batch(self.recipe)
        # Where the optimiser cannot skip a step on the device, the host has to know before it.
        reads_late = self.ranks.device.type == "cuda" and skips_on_device(self.state.optimizer)
        self.late_steps = LATE_STEPS if reads_late else 0
        """How many steps later the host reads the numbers of a step."""
        self.sentinel = Sentinel(self.late_steps)
        self.loaded: Loaded | None = None
        self.bad: PendingStep | None = None
        """The step that trouble was raised about."""
        if faults.is_armed("gradient"):
            # The first weights get their gradient last: all others are exchanged by then.
            first = self.parameters[0]
            first.register_hook(lambda gradient: faults.reach("gradient", gradient))  # type: ignore[no-untyped-call]

    def _use_wrapped(self) -> None:
        self.parameters = [p for p in self.state.model.parameters() if p.requires_grad]
        # torch.compile wraps the module once more.
        self.ddp = getattr(self.wrapped, "_orig_mod", self.wrapped)
        self.is_frozen = len(self.parameters) < sum(map(is_trained, self.state.model.parameters()))
        """Whether some weights are not trained now, and will be or would be."""

    def train_mode(self) -> None:
        """Set the model to training; BatchNorm layers that are or were frozen keep their
        statistics."""
        self.wrapped.train()
        if self.is_frozen or self.freeze.keeps_statistics:
            self.freeze.hold_statistics(self.state.model)

    def thaws_at(self, batch: Batch) -> bool:
        """Whether all weights are to be trained from this batch on, and are not yet."""
        return self.is_frozen and not self.freeze.holds(batch.position, self.timeline.samples)

    def thaw(self) -> None:
        """Train all weights from here on. DDP and the compiler made their plans for some of them,
        so the model is wrapped again, as an attempt that begins here wraps it."""
        assert self.wrap is not None
        if isinstance(self.ddp, DistributedDataParallel):
            # Those of the new one would come on top.
            self.ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        self.state.model.zero_grad(set_to_none=True)
        self.freeze.thaw(self.state.model)
        self.state.model.train()
        self.wrapped, self.exchange = self.wrap()
        self._use_wrapped()
        self.train_mode()

    def __call__(self, loaded: Loaded) -> LateNumbers:
        """Make the step. Returns the loss and the top-1 and top-5 hits, summed over this rank's
        images, and the norm of the gradient. Raises Trouble; without memory, on this rank alone."""
        state, batch = self.state, loaded.batch
        self.loaded = loaded
        faults.at_step(batch.step)
        seed = seed_of(self.recipe.seed, batch.position, self.ranks.rank, "dropout")
        seed_device(self.ranks.device, seed, python=bool(self.recipe.model_code))
        rate = learning_rate(self.recipe, self.timeline.samples, batch)
        self.rate = rate * self.remedies.lr_factor(batch.position)
        set_learning_rate(state.optimizer, self.rate)
        for parameter in self.parameters:
            parameter.grad = None
        fits = True
        try:
            sums = self.passes(loaded)
            with self.spans("optimiser"):
                late = self.update(batch.step, sums)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        if not fits:  # raised here, where the exception no longer holds tensors
            raise self.out_of_memory(batch.step)
        state.position, state.step = batch.end, batch.step + 1
        return late

    def out_of_memory(self, step: int) -> Trouble:
        """The trouble of this rank without memory. A rank among others is alone with it."""
        alone = self.ranks.world == 1
        return Trouble(MEMORY, step, f"on rank {self.ranks.rank}", agreed=alone)

    def passes(self, loaded: Loaded) -> Tensor:
        """Forward and backward over all micro-batches; the sums of loss, top-1 and top-5, and a
        place for the norm of the gradient."""
        sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
        batch, count = loaded.batch, len(loaded.labels)
        on_device: DeviceBatch | None = None
        for begin, end in pairwise(micro_cuts(count, self.micro_batch)):
            with self.spans("to_device"):
                on_device = on_device or self.send(loaded)
                part = on_device.part(begin, end)
                images = self.to_input(part.images, part.mix)
            sums[:3] += self.micro_step(images, part, batch, end == count)
        if on_device:
            self.batches.release(on_device)
        return sums

    def send(self, loaded: Loaded) -> DeviceBatch:
        """Bring a batch to the device, with its mixing numbers: a loader draws them ahead."""
        if loaded.drawn is None and mixes(self.recipe):
            size, samples, epochs = loaded.batch.image_size, loaded.samples, loaded.epochs
            loaded.drawn = draw_mix(self.recipe, size, samples, epochs)
        return self.batches.send(loaded)

    def blank_input(self, images: int, image_size: int) -> Tensor:
        """The input that black images become."""
        shape = (images, image_size, image_size, 3)
        black = torch.zeros(shape, dtype=torch.uint8, device=self.ranks.device)
        return self.to_input(black, None)

    def micro_batch_sizes(self, batch: Batch) -> list[int]:
        """Images in each micro-batch of this rank's share of a batch, in order."""
        edges = cuts(batch.size, self.ranks.world)
        share = edges[self.ranks.rank + 1] - edges[self.ranks.rank]
        return [end - begin for begin, end in pairwise(micro_cuts(share, self.micro_batch))]

    def micro_step(
        self, images: Tensor, part: DeviceBatch, batch: Batch, exchanges: bool
    ) -> Tensor:
        """Forward and backward over one micro-batch; the sums of its loss, top-1 and top-5."""
        spans, labels = self.spans, part.labels
        with self.exchange_gradients(exchanges):
            with spans("forward"):
                logits, losses, weighted = self.losses(images, part)
                weighted = faults.reach("loss", weighted)
            with spans("backward"):
                # DDP averages over ranks. This scale makes the result the mean over the whole
                # batch, however the batch is divided into ranks and micro-batches.
                loss = weighted.sum() * (self.ranks.world / batch.size)
                self.state.scaler.scale(loss).backward()
        with torch.no_grad():
            best, five = hits(logits.detach(), labels)
            logged = weighted if self.class_weights is None else losses
            return torch.stack([logged.detach().sum().double(), best.double(), five.double()])

    def losses(self, images: Tensor, part: DeviceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The logits, and the loss of each image without and with the weight of its class. Both
        classes of a mixed image count with their own weight."""
        labels, mix, weights = part.labels, part.mix, self.class_weights
        logits = forward(self.wrapped, images, self.recipe.amp)
        smoothing = self.recipe.label_smoothing
        losses = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        weighted = losses if weights is None else weights[labels] * losses
        if mix is not None:
            mixed_in = labels[partners(len(labels), labels.device)]
            others = cross_entropy(logits, mixed_in, reduction="none", label_smoothing=smoothing)
            losses = mix.share * losses + (1 - mix.share) * others
            if weights is None:
                return logits, losses, losses
            weighted = mix.share * weighted + (1 - mix.share) * weights[mixed_in] * others
        return logits, losses, weighted

    def exchange_gradients(self, last: bool) -> AbstractContextManager[None]:
        """The context of one micro-batch: ranks exchange gradients with the last one only."""
        if last or not isinstance(self.ddp, DistributedDataParallel):
            return nullcontext()
        return self.ddp.no_sync()

    def update(self, step: int, sums: Tensor) -> LateNumbers:
        """Update weights and moving average; the sums with the norm of the gradient, which are read
        late. Raises Trouble about a gradient that is not finite."""
        state = self.state
        state.scaler.unscale_(state.optimizer)
        if state.masking:
            state.masking.hold_gradients()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = gradient_norm(gradients)
        sums[3] = norm.detach()
        late = LateNumbers(sums)
        if self.guards:
            evidence = self.evidence_of_batch()
            self.sentinel.add(PendingStep(step, late, evidence))
            self.raise_agreed_trouble(self.sentinel.first_bad())
        if self.recipe.clip_grad:
            clip_gradients(gradients, self.recipe.clip_grad, norm)
        if self.guards and self.late_steps:
            # A fused optimiser reads this on the device and then does not change the weights.
            state.optimizer.found_inf = norm.isfinite().logical_not().float()  # type: ignore[attr-defined]
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.ema:
            state.ema.update(state.model, state.step)
        if state.masking:
            state.hold_pruned()
        return late

    @property
    def guards(self) -> bool:
        """Whether a gradient that is not finite is trouble. The scaler of fp16 skips such steps."""
        return not self.state.scaler.is_enabled()

    def raise_agreed_trouble(self, bad: PendingStep | None) -> None:
        """Raise Trouble about a bad step, with the same cause on every rank."""
        if bad is None:
            return
        self.bad = bad
        own_is_bad = not bool(bad.sums.numbers()[:3].isfinite().all())
        culprit = self.ranks.largest([own_is_bad * (self.ranks.rank + 1)])[0]
        if self.recipe.on_divergence != "off":
            whose = f" of rank {culprit - 1}" if culprit and self.ranks.world > 1 else ""
            detail = f"the gradient{whose}; the weights were not touched"
            raise Trouble(NOT_FINITE, bad.step, detail)

    def evidence_of_batch(self) -> dict[str, Any]:
        """The samples and labels of this rank's batch, and the learning rate."""
        loaded = self.loaded
        return {
            "lr": self.rate,
            "samples": loaded.samples if loaded else [],
            "labels": loaded.labels if loaded else [],
        }

    def evidence(self) -> dict[str, Any]:
        """This rank's largest gradient norms, and the learning rate and samples of the step in
        trouble, for the record. The gradients are those of the latest step (`gradients_of`)."""
        named = self.state.model.named_parameters()
        norms = {name: float(p.grad.norm()) for name, p in named if p.grad is not None}
        largest = sorted(norms, key=lambda name: (norms[name] == norms[name], -norms[name]))
        batch = dict(self.bad.evidence) if self.bad else self.evidence_of_batch()
        return {
            "lr": batch["lr"],
            "scale": self.state.scaler.get_scale(),
            "gradient_norms": {name: repr(norms[name]) for name in largest[:20]},
            "gradients_of": self.loaded.batch.step if self.loaded else None,
            "samples": [int(sample) for sample in batch["samples"]],
            "labels": [int(label) for label in batch["labels"]],
            "micro_batch": self.micro_batch,
        }
