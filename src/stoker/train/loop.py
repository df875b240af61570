"""The training loop.

    while samples are left:
        between steps:  stop?  evaluate?  save?
        data -> device -> forward -> backward (for each micro-batch) -> optimiser -> position

Invariants: between two steps the state is whole and every earlier step is in the events, so this is
where a run is stopped, evaluated and saved. A step is a function of the state and the position: the
learning rate, the order, the crops, the mixing and the dropout are all counted from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from stoker.data.chance import seed_of
from stoker.data.loader import Loaded, Loader
from stoker.errors import StokerError
from stoker.measure.spans import Spans
from stoker.recipe.position import Timeline, learning_rate, micro_cuts
from stoker.recipe.recipe import Recipe
from stoker.run import Events
from stoker.survive.checkpoint import Checkpoints
from stoker.survive.stopping import StopWish
from stoker.train.evaluate import Evaluator, hits
from stoker.train.mixing import apply_mix, draw_mix, partners
from stoker.train.optim import set_learning_rate
from stoker.train.ranks import Agreement, Ranks
from stoker.train.state import TrainState
from stoker.train.steplog import StepLog

AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Loop:
    """All that a run needs, put together in session.py."""

    recipe: Recipe
    timeline: Timeline
    ranks: Ranks
    state: TrainState
    wrapped: nn.Module
    to_input: Callable[[NDArray[np.uint8]], Tensor]
    loader: Loader
    evaluator: Evaluator | None
    checkpoints: Checkpoints
    facts: dict[str, Any]
    events: Events
    stop: StopWish

    def __post_init__(self) -> None:
        self.spans = Spans()
        self.log = StepLog(self.events)
        self.agreement = Agreement(self.ranks, self.log.flush)
        self.saved_at = time.monotonic()
        # torch.compile wraps once more; what it wrapped is the same module.
        self.ddp = getattr(self.wrapped, "_orig_mod", self.wrapped)
        self.saved = (self.state.position, self.state.evaluated) if self.state.position else None
        self.best_saved = self.state.best
        self.last_failure = ""

    def run(self) -> bool:
        """Train to the end; False if it was stopped before."""
        state, timeline = self.state, self.timeline
        batches = self.loader.batches(timeline.batches(state.position))
        self.wrapped.train()
        while state.position < timeline.end:
            if self.between_steps():
                return False
            with self.spans("data"):
                loaded = next(batches)
            sums = self.step(loaded)
            batch = loaded.batch
            self.log.step(
                sums,
                step=batch.step,
                position=batch.position,
                epoch=round(batch.position / timeline.samples, 4),
                batch=batch.size,
                images=len(loaded.labels),
                lr=state.optimizer.param_groups[0]["lr"],
                parts=self.spans.lap(),
            )
        if self.between_steps():
            return False
        self.log.flush()
        self.ranks.meet()
        self.save(wait=True)
        return True

    def step(self, loaded: Loaded) -> Tensor:
        """One step of the optimiser over this rank's part of the batch."""
        recipe, state, batch, spans = self.recipe, self.state, loaded.batch, self.spans
        torch.manual_seed(seed_of(recipe.seed, batch.position, self.ranks.rank, "dropout"))
        rate = learning_rate(recipe, self.timeline.samples, batch)
        share = len(loaded.labels)
        sums = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        set_learning_rate(state.optimizer, rate)
        state.optimizer.zero_grad(set_to_none=True)
        for begin, end in pairwise(micro_cuts(share, recipe.micro_batch)):
            with spans("to_device"):
                images = self.to_input(loaded.images[begin:end])
                labels = torch.from_numpy(loaded.labels[begin:end]).to(self.ranks.device)
            with self.exchange_gradients(end == share):
                with spans("forward"):
                    logits, losses = self.forward(images, labels, loaded, begin, end)
                with spans("backward"):
                    # DDP averages over ranks: scaled so that the result is the mean over the
                    # batch, whatever each rank and micro-batch holds of it.
                    loss = losses.sum() * (self.ranks.world / batch.size)
                    state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                best, five = hits(logits.detach(), labels)
                sums += torch.stack([losses.detach().sum().double(), best.double(), five.double()])
        with spans("optimiser"):
            self.update()
        state.position, state.step = batch.end, batch.step + 1
        return sums

    def forward(
        self, images: Tensor, labels: Tensor, loaded: Loaded, begin: int, end: int
    ) -> tuple[Tensor, Tensor]:
        """Logits, and the loss of each image."""
        recipe, device = self.recipe, self.ranks.device
        samples, epochs = loaded.samples[begin:end], loaded.epochs[begin:end]
        mix = draw_mix(recipe, loaded.batch.image_size, samples, epochs, device)
        with torch.autocast(device.type, AMP_TYPES.get(recipe.amp), recipe.amp in AMP_TYPES):
            logits = self.wrapped(apply_mix(mix, images))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        smoothing = recipe.label_smoothing
        losses = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        if mix is not None:
            others = labels[partners(len(labels), device)]
            away = cross_entropy(logits, others, reduction="none", label_smoothing=smoothing)
            losses = mix.share * losses + (1 - mix.share) * away
        return logits, losses

    def exchange_gradients(self, last: bool) -> AbstractContextManager[None]:
        """Ranks exchange gradients with the last micro-batch only."""
        if last or not isinstance(self.ddp, DistributedDataParallel):
            return nullcontext()
        return self.ddp.no_sync()

    def update(self) -> None:
        """Move the weights, then their average."""
        state = self.state
        if self.recipe.clip_grad:
            state.scaler.unscale_(state.optimizer)
            nn.utils.clip_grad_norm_(state.model.parameters(), self.recipe.clip_grad)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.ema:
            state.ema.update(state.model, state.step)

    def between_steps(self) -> bool:
        """Stop, evaluate or save where it is time to; True if the run shall stop here."""
        if self.wants_to_stop():
            return self.leave()
        better = False
        if self.evaluation_is_due():
            with self.spans("evaluation"):
                outcome = self.evaluate()
            if outcome is None:
                return self.leave()
            better = outcome
        at_risk = time.monotonic() - self.saved_at
        if better or (self.agreement.met and at_risk > self.recipe.checkpoint_interval):
            self.save(best=better)
        self.report_saves()
        return False

    def wants_to_stop(self) -> bool:
        return self.agreement.poll(bool(self.stop))

    def leave(self) -> bool:
        self.save(wait=True)
        return True

    def evaluation_is_due(self) -> bool:
        position = self.state.position
        if self.evaluator is None or position in (0, self.state.evaluated):
            return False
        stride = self.recipe.eval_every * self.timeline.samples
        due = position // stride > self.state.evaluated // stride
        return due or position == self.timeline.end

    def evaluate(self) -> bool | None:
        """Whether the network is better than ever; None if a stop came first."""
        assert self.evaluator is not None
        state, began = self.state, time.perf_counter()
        size = self.timeline.stretches[-1].image_size
        self.log.flush()
        self.events.write("evaluating", step=state.step, position=state.position)
        self.events.flush()
        self.ranks.share_buffers(state.evaluated_model)
        self.agreement.meet_next()
        found = self.evaluator.run(state.evaluated_model, size, self.to_input, self.wants_to_stop)
        self.agreement.meet_next()
        if found is None:
            return None
        better = found.top1_share > state.best
        state.evaluated = state.position
        state.best = max(state.best, found.top1_share)
        self.events.write(
            "evaluation",
            step=state.step,
            position=state.position,
            epoch=round(state.position / self.timeline.samples, 4),
            images=found.images,
            top1=found.top1,
            top5=found.top5,
            loss=found.loss,
            seconds=round(time.perf_counter() - began, 3),
        )
        return better

    def save(self, *, best: bool = False, wait: bool = False) -> None:
        """Put the state on disk: rank 0 does, in the background unless it has to wait."""
        with self.spans("checkpoint"):
            now = (self.state.position, self.state.evaluated)
            recorded = self.log.flush()
            if wait:
                self.checkpoints.join()
                self.report_saves()
            if self.ranks.first and now != self.saved and recorded:
                self.events.sync()
                self.checkpoints.save(self.state.snapshot(self.facts), best=best)
            self.saved, self.saved_at = now, time.monotonic()
            if wait:
                self.checkpoints.join()
                self.report_saves()
            if not recorded:
                self.save_failed("the events of this run cannot be written: is the disk full?")
            if wait and self.ranks.first and self.saved != now:
                raise StokerError(f"{self.last_failure}; what was saved before is safe")

    def report_saves(self) -> None:
        """An event for each save that was committed, and for each that failed: training goes on,
        what was saved before is safe, and the next save is tried when its time comes."""
        while self.checkpoints.failures:
            self.save_failed(str(self.checkpoints.failures.pop(0)))
        while self.checkpoints.finished:
            saved = self.checkpoints.finished.pop(0)
            if saved.best is not None:
                self.best_saved = saved.best
            self.events.write(
                "checkpoint",
                step=saved.step,
                position=saved.position,
                name=saved.name,
                bytes=saved.bytes,
                seconds=round(saved.seconds, 3),
            )

    def save_failed(self, reason: str) -> None:
        """What was not saved does not count as saved, nor as the best."""
        self.events.write("save_failed", reason=reason)
        self.saved, self.last_failure = None, reason
        self.state.best = self.best_saved
