"""The training loop.

    while samples are left:
        between steps:  stop?  evaluate?  save?
        data -> step -> log

Invariants: between two steps the state is whole and every earlier step is in the events, so this is
where a run is stopped, evaluated and saved. All ranks decide that at the same step.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from stoker.data.loading.loader import Loaded, Loader
from stoker.measure.spans import Spans, shares_of
from stoker.recipe.schedule import Batch, Timeline
from stoker.run.events import Events
from stoker.survive.divergence import LossWatch
from stoker.survive.stopping import StopNow, StopRequest
from stoker.survive.trouble import EXPLODING, MEMORY, Trouble
from stoker.survive.watchdog import Watchdog
from stoker.train.compile import WarmUp
from stoker.train.evaluate import Evaluator
from stoker.train.process_group import Agreement, Ranks
from stoker.train.records.saving import Saves
from stoker.train.records.step_log import StepLog
from stoker.train.records.verdicts import VerdictWatch
from stoker.train.state import TrainState
from stoker.train.step import Step

GO_ON, STOP, DIVERGED, STARVED = range(4)
"""What a rank may wish, the most urgent last."""


@dataclass
class Loop:
    """All that a run needs, put together in session.py."""

    timeline: Timeline
    ranks: Ranks
    state: TrainState
    step: Step
    warm_up: WarmUp
    loader: Loader
    evaluator: Evaluator | None
    eval_every: int
    saves: Saves
    log: StepLog
    losses: LossWatch
    events: Events
    stop: StopRequest
    watchdog: Watchdog
    watch: VerdictWatch
    patience_s: float
    """How long ranks that wish to stop wait for a batch that does not come."""

    def __post_init__(self) -> None:
        self.agreement = Agreement(self.ranks, self.log.flush)

    @property
    def spans(self) -> Spans:
        return self.step.spans

    def run(self) -> bool:
        """Train to the end; False if it was stopped before."""
        state, timeline = self.state, self.timeline
        batches = self.loader.batches(timeline.batches(state.position), self.while_waiting)
        self.step.wrapped.train()
        self.begin_to_count()
        try:
            while state.position < timeline.end:
                if self.between_steps():
                    return False
                self.compile(timeline.batch_at(state.position))
                with self.spans("data"):
                    loaded = next(batches)
                self.train_on(loaded)
            self.agreement.meet_next()
            if self.between_steps():
                return False
        except StopNow:
            # Raised only where the state is whole: waiting for data. The others may be elsewhere,
            # so nothing is asked of them.
            with self.spans("checkpoint"):
                self.saves.save(wait=True)
            return False
        self.log.flush()
        self.ranks.meet()
        self.save(wait=True)
        return True

    def compile(self, batch: Batch) -> None:
        """Compile for a batch of a shape that is new; saved before, as it may be broken off."""
        if self.warm_up.is_new(batch):
            self.log.flush()
            self.ranks.meet()
            self.save(wait=True)
            self.ranks.meet()
            self.warm_up(batch)

    def train_on(self, loaded: Loaded) -> None:
        """One step, or none where a remedy says so, and its record."""
        batch = loaded.batch
        epoch = round(batch.position / self.timeline.samples, 4)
        where = {"step": batch.step, "position": batch.position, "epoch": epoch}
        if self.step.remedies.skips(batch.position):
            self.state.position, self.state.step = batch.end, batch.step + 1
            self.log.flush()
            self.events.write("skipped", **where, batch=batch.size, parts=self.spans.lap().parts())
            return
        sums, work = self.step(loaded), loaded.work
        self.log.step(
            sums,
            **where,
            batch=batch.size,
            images=len(loaded.labels),
            lr=self.state.optimizer.param_groups[0]["lr"],
            lap=self.spans.lap(shares_of(work)),
            work=work,
            **self.exchanged(),
        )

    def begin_to_count(self) -> None:
        """What came before the first step is the attempt's start, not a part of it."""
        self.spans.lap()
        self.exchanged()

    def exchanged(self) -> dict[str, Any]:
        """What ranks have sent each other in a step, if there are several."""
        if self.step.exchange is None:
            return {}
        sent, seconds = self.step.exchange.take()
        return {"sent": {"bytes": sent, "seconds": seconds}}

    def between_steps(self) -> bool:
        """Stop, evaluate or save where it is time to; True if the run shall stop here."""
        if self.wants_to_stop():
            self.save(wait=True)
            return True
        better = False
        if self.evaluation_is_due():
            with self.spans("evaluation"):
                outcome = self.evaluate()
            if outcome is None:
                self.save(wait=True)
                return True
            better = outcome
        if better or self.agreement.due:
            self.save(best=better)
        self.report()
        self.watch()
        return False

    def wants_to_stop(self) -> bool:
        """Whether the ranks have agreed to stop; raises what else they have agreed on."""
        self.watchdog.beat()
        if self.saves.due:
            self.log.flush()
        starved = self.step.starved_at is not None
        wish = STARVED if starved else DIVERGED if self.losses.exploding else GO_ON
        # A loss that is far too high is not worth keeping, nor what was kept before worth losing.
        due = self.saves.due and not self.losses.high
        agreed = self.agreement.poll(wish or (STOP if self.stop else GO_ON), due)
        if agreed == STARVED:
            step = self.earliest(self.step.starved_at)
            raise Trouble(MEMORY, step, "on some rank")
        if agreed == DIVERGED:
            raise self.explosion()
        return agreed == STOP

    def explosion(self) -> Trouble:
        """The trouble with the loss; its beginning is the same on every rank."""
        since = self.earliest(self.losses.since if self.losses.high else None)
        worst = max((loss for _, loss in self.losses.recent), default=0.0)
        seen = (
            f"a loss of up to {worst:.1f} since step {since}, guessing has {self.losses.chance:.1f}"
        )
        return Trouble(EXPLODING, self.state.step, seen, since=since)

    def earliest(self, step: int | None) -> int:
        """The earliest step of all that ranks have to tell, by way of the largest negative."""
        return -self.ranks.largest([-(1 << 62) if step is None else -step])[0]

    def while_waiting(self, seconds: float) -> None:
        """A batch keeps us waiting. The state is whole, but the others may be ahead: they get some
        time to be followed, then a rank leaves with what it has."""
        if self.stop and (self.ranks.world == 1 or seconds > self.patience_s):
            raise StopNow

    def save(self, *, best: bool = False, wait: bool = False) -> None:
        with self.spans("checkpoint"):
            if self.step.guards:
                self.step.raise_agreed_trouble(self.step.sentinel.first_bad(all_steps=True))
            self.saves.save(best=best, wait=wait)

    def report(self) -> None:
        """Say what others have noticed meanwhile: saves, stalls, notes."""
        self.saves.report()
        while self.watchdog.stalls:
            self.events.write("stall", step=self.state.step, words=self.watchdog.stalls.pop(0))
        while self.stop.notes:
            self.events.write("note", words=self.stop.notes.pop(0))

    def evaluation_is_due(self) -> bool:
        position = self.state.position
        if self.evaluator is None or position in (0, self.state.evaluated):
            return False
        stride = self.eval_every * self.timeline.samples
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
        found = self.evaluator.run(
            state.evaluated_model,
            size,
            self.step.to_input,
            self.wants_to_stop,
            self.while_waiting,
        )
        self.agreement.meet_next()
        if found is None:
            return None
        better = found.top1_share > state.best and math.isfinite(found.loss)
        better = bool(self.ranks.from_first(int(better)))
        state.evaluated = state.position
        state.best = found.top1_share if better else state.best
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
