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

import numpy as np
import torch
from numpy.typing import NDArray
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
from stoker.survive.divergence import PendingStep, Sentinel
from stoker.survive.remedies import MEMORY, NOT_FINITE, Remedies, Trouble
from stoker.train.device import seed_device
from stoker.train.evaluate import hits
from stoker.train.mixing import apply_mix, draw_mix, partners
from stoker.train.optim import set_learning_rate
from stoker.train.passes import forward
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState


@dataclass
class Step:
    """This rank's part of a step."""

    recipe: Recipe
    timeline: Timeline
    ranks: Ranks
    state: TrainState
    wrapped: nn.Module
    to_input: Callable[[NDArray[np.uint8]], Tensor]
    remedies: Remedies
    spans: Spans = field(default_factory=Spans)
    exchange: GradientExchange | None = None

    def __post_init__(self) -> None:
        # torch.compile wraps the module once more.
        self.ddp = getattr(self.wrapped, "_orig_mod", self.wrapped)
        self.micro_batch = self.remedies.micro_batch(self.recipe)
        self.sentinel = Sentinel(self.ranks.device)
        self.loaded: Loaded | None = None
        if faults.is_armed("gradient"):
            # The first weights get their gradient last: all others are exchanged by then.
            first = next(self.state.model.parameters())
            first.register_hook(lambda gradient: faults.reach("gradient", gradient))  # type: ignore[no-untyped-call]

    def __call__(self, loaded: Loaded) -> Tensor:
        """Make the step. Returns the loss and the top-1 and top-5 hits, summed over this rank's
        images, and the norm of the gradient. Raises Trouble that all ranks agree on."""
        state, batch = self.state, loaded.batch
        self.loaded = loaded
        faults.at_step(batch.step)
        seed = seed_of(self.recipe.seed, batch.position, self.ranks.rank, "dropout")
        seed_device(self.ranks.device, seed)
        rate = learning_rate(self.recipe, self.timeline.samples, batch)
        set_learning_rate(state.optimizer, rate * self.remedies.lr_factor(batch.position))
        state.optimizer.zero_grad(set_to_none=True)
        fits = True
        try:
            sums = torch.zeros(4, dtype=torch.float64, device=self.ranks.device)
            for begin, end in pairwise(micro_cuts(len(loaded.labels), self.micro_batch)):
                sums[:3] += self.micro_step(loaded, begin, end)
            with self.spans("optimiser"):
                sums[3] = self.update(PendingStep(batch.step, sums))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        if not fits:  # raised here, where the exception no longer holds tensors
            raise self.out_of_memory(batch.step)
        state.position, state.step = batch.end, batch.step + 1
        return sums

    def out_of_memory(self, step: int) -> Trouble:
        """The trouble of this rank without memory. A rank among others is alone with it."""
        alone = self.ranks.world == 1
        return Trouble(MEMORY, step, f"on rank {self.ranks.rank}", agreed=alone)

    def micro_batch_sizes(self, batch: Batch) -> list[int]:
        """Images in each micro-batch of this rank's share of a batch, in order."""
        edges = cuts(batch.size, self.ranks.world)
        share = edges[self.ranks.rank + 1] - edges[self.ranks.rank]
        return [end - begin for begin, end in pairwise(micro_cuts(share, self.micro_batch))]

    def micro_step(self, loaded: Loaded, begin: int, end: int) -> Tensor:
        """Forward and backward over one micro-batch; the sums of its loss, top-1 and top-5."""
        spans, batch = self.spans, loaded.batch
        with spans("to_device"):
            images = self.to_input(loaded.images[begin:end])
            labels = torch.from_numpy(loaded.labels[begin:end]).to(self.ranks.device)
        with self.exchange_gradients(end == len(loaded.labels)):
            with spans("forward"):
                logits, losses = self.losses(images, labels, loaded, begin, end)
                losses = faults.reach("loss", losses)
            with spans("backward"):
                # DDP averages over ranks. This scale makes the result the mean over the whole
                # batch, however the batch is divided into ranks and micro-batches.
                loss = losses.sum() * (self.ranks.world / batch.size)
                self.state.scaler.scale(loss).backward()
        with torch.no_grad():
            best, five = hits(logits.detach(), labels)
            return torch.stack([losses.detach().sum().double(), best.double(), five.double()])

    def losses(
        self, images: Tensor, labels: Tensor, loaded: Loaded, begin: int, end: int
    ) -> tuple[Tensor, Tensor]:
        """The logits and the loss of each image."""
        recipe, device = self.recipe, self.ranks.device
        samples, epochs = loaded.samples[begin:end], loaded.epochs[begin:end]
        mix = draw_mix(recipe, loaded.batch.image_size, samples, epochs, device)
        logits = forward(self.wrapped, apply_mix(mix, images), recipe.amp)
        smoothing = recipe.label_smoothing
        losses = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        if mix is not None:
            mixed_in = labels[partners(len(labels), device)]
            others = cross_entropy(logits, mixed_in, reduction="none", label_smoothing=smoothing)
            losses = mix.share * losses + (1 - mix.share) * others
        return logits, losses

    def exchange_gradients(self, last: bool) -> AbstractContextManager[None]:
        """The context of one micro-batch: ranks exchange gradients with the last one only."""
        if last or not isinstance(self.ddp, DistributedDataParallel):
            return nullcontext()
        return self.ddp.no_sync()

    def update(self, step: PendingStep) -> Tensor:
        """Update weights and moving average; the norm. Raises Trouble if it is not finite."""
        state = self.state
        state.scaler.unscale_(state.optimizer)
        params = [p for p in state.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
        if self.guards:
            self.sentinel.add(step, norm)
            self.raise_agreed_trouble(self.sentinel.first_bad())
        if self.recipe.clip_grad:
            nn.utils.clip_grads_with_norm_(params, self.recipe.clip_grad, norm)
        if self.guards and self.ranks.device.type == "cuda":
            # A fused optimiser reads this on the device and then does not change the weights.
            state.optimizer.found_inf = norm.isfinite().logical_not().float()  # type: ignore[attr-defined]
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.ema:
            state.ema.update(state.model, state.step)
        return norm.detach()

    @property
    def guards(self) -> bool:
        """Whether a gradient that is not finite is trouble. The scaler of fp16 skips such steps."""
        return not self.state.scaler.is_enabled()

    def raise_agreed_trouble(self, bad: PendingStep | None) -> None:
        """Raise Trouble about a bad step, with the same cause on every rank."""
        if bad is None:
            return
        own_is_bad = not bool(bad.sums[:3].isfinite().all())
        culprit = self.ranks.largest([own_is_bad * (self.ranks.rank + 1)])[0]
        if self.recipe.on_divergence != "off":
            whose = f" of rank {culprit - 1}" if culprit and self.ranks.world > 1 else ""
            detail = f"the gradient{whose}; the weights were not touched"
            raise Trouble(NOT_FINITE, bad.step, detail)

    def evidence(self) -> dict[str, Any]:
        """This rank's learning rate, largest gradient norms and samples, for the record."""
        named = self.state.model.named_parameters()
        norms = {name: float(p.grad.norm()) for name, p in named if p.grad is not None}
        largest = sorted(norms, key=lambda name: (norms[name] == norms[name], -norms[name]))
        loaded = self.loaded
        return {
            "lr": self.state.optimizer.param_groups[0]["lr"],
            "scale": self.state.scaler.get_scale(),
            "gradient_norms": {name: repr(norms[name]) for name in largest[:20]},
            "samples": loaded.samples.tolist() if loaded else [],
            "labels": loaded.labels.tolist() if loaded else [],
            "micro_batch": self.micro_batch,
        }
