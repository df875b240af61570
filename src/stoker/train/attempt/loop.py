"""The training loop.

    while samples are left:
        between steps:  stop?  evaluate?  save?
        data -> step -> log

Invariants: between two steps the state is complete and every earlier step is in the events. Only
there is a run stopped, evaluated and saved, and all ranks decide that at the same step.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from stoker.data.loading.loader import Loaded
from stoker.errors import StokerError
from stoker.host.out_of_memory import is_out_of_memory
from stoker.measure.spans import shares_of
from stoker.price.ledger.budget import ELSEWHERE, is_budget_stop
from stoker.recipe.early_end import early_end
from stoker.recipe.schedule import Batch
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.survive.divergence import LossWatch
from stoker.survive.remedies import EXPLODING, HIGH, Trouble
from stoker.survive.stopping import StopNow, StopRequest
from stoker.survive.watchdog import Watchdog
from stoker.text import plural
from stoker.train.attempt.garbage import collecting_by_schedule
from stoker.train.attempt.money import NO_MONEY, Money
from stoker.train.loaders import Loaders
from stoker.train.process_group import Agreement
from stoker.train.records.kept_evaluation import EvaluationKeeper
from stoker.train.records.saving import Saves
from stoker.train.records.step_log import StepLog
from stoker.train.records.verdicts import VerdictWatch
from stoker.train.shape_trial import ShapeTrial
from stoker.train.step import Step

GO_ON, STOP, SPENT, DIVERGED, RUN_LOST = range(5)
"""The votes of a rank between two steps, the most urgent last."""
SECONDS_BETWEEN_LOOKS = 1.0
"""Between two checks that the run directory is still there."""
WAIT_SHARE = 0.25
"""The share of the grace period for which a rank that should stop waits for a late batch."""


@dataclass(frozen=True)
class Guards:
    """What can end an attempt early."""

    losses: LossWatch
    watchdog: Watchdog
    stop: StopRequest
    run: Run
    """Its directory may be moved or removed."""
    money: Money = NO_MONEY
    """Its budget may be spent."""


@dataclass(frozen=True)
class Records:
    """What an attempt leaves in the run directory."""

    events: Events
    log: StepLog
    saves: Saves
    verdicts: VerdictWatch
    keep_evaluation: EvaluationKeeper | None = None
    """On rank 0 of a run that evaluates."""


def evaluates_too_many(images: int) -> StokerError:
    """The error of a rank that runs out of memory with so many images in an evaluation."""
    return StokerError(
        f"an evaluation of {plural(images, 'image')} at once runs out of memory: lower "
        "--eval-batch-size; the run goes on from its newest checkpoint"
    )


@dataclass
class Loop:
    """One attempt, built by assembly.py."""

    step: Step
    shape_trial: ShapeTrial
    loaders: Loaders
    guards: Guards
    records: Records
    until: float | None = None
    """The epoch after which the attempt ends although the run does not; None: at the run's end."""

    def __post_init__(self) -> None:
        self.ranks, self.state = self.step.ranks, self.step.state
        self.timeline, self.spans = self.step.timeline, self.step.spans
        self.agreement = Agreement(self.ranks, self.records.log.flush_finished)
        self._look_at, self._is_spent = 0.0, False
        self.end = self.timeline.end
        if self.until is not None:
            self.end = self.timeline.batch_start_from(self.until)
        """The position at which this attempt ends."""

    def begin(self) -> None:
        """Start the threads that watch this attempt."""
        self.guards.watchdog.begin()
        self.records.verdicts.begin()

    def close(self) -> None:
        """Wait for a save in progress and end all threads."""
        self.records.saves.checkpoints.join(self.guards.watchdog.touch)
        self.guards.watchdog.close()
        self.records.verdicts.close()
        self.loaders.close()

    def run(self) -> bool:
        """Train to the end of the run, or to an early one; False if stopped before. Raises
        Trouble."""
        plan = self.timeline.batches(self.state.position, self.end)
        batches = self.loaders.loader.batches(plan, self.while_waiting)
        self.step.train_mode()
        with collecting_by_schedule() as collect:
            return self.steps(batches, collect)

    def steps(self, batches: Iterator[Loaded], collect: Callable[[int], None]) -> bool:
        """All steps that are left; False if stopped before."""
        state, timeline = self.state, self.timeline
        # The time and the traffic before the first step belong to the start of the attempt.
        self.spans.lap()
        self.exchanged()
        try:
            while state.position < self.end and not self.early_end:
                if self.between_steps():
                    return False
                if self.early_end:
                    break
                self.thaw_before(batch := timeline.batch_at(state.position))
                if self.try_shape(batch):
                    return False
                with self.spans("data"):
                    loaded = next(batches)
                self.train_on(loaded)
                collect(state.step)
            self.agreement.meet_next()
            if self.between_steps():
                return False
        except StopNow:
            # Raised only where the state is complete: while waiting for data. Other ranks may be
            # at another step, so this save does not involve them.
            with self.spans("checkpoint"):
                self.records.saves.save(wait=True)
            return False
        self.records.log.flush()
        self.ranks.meet()
        self.save(wait=True)
        with self.guards.watchdog.long_work():
            self.ranks.meet()  # no rank ends with 0 before the run is finished
        return True

    @property
    def early_end(self) -> str:
        """Why the run ends at this position; empty where it does not. Only just after an evaluation
        does it, and all ranks know the same evaluations."""
        state = self.state
        if not state.position or state.evaluated != state.position:
            return ""
        return early_end(self.step.recipe, state.best, state.stale)

    def thaw_before(self, batch: Batch) -> None:
        """Train all weights from this batch on, if the recipe says so."""
        if not self.step.thaws_at(batch):
            return
        self.records.log.flush()
        with self.guards.watchdog.long_work():
            self.step.thaw()
            gc.unfreeze()
            gc.collect()  # the old wrapping has buffers for gradients
            gc.freeze()
        self.exchanged()  # that of the passes in which DDP plans is no step's
        self.shape_trial.forget()
        words = "all weights are trained from here on"
        self.records.events.write("note", words=f"epoch {self.step.freeze.epochs:g}: {words}")

    def try_shape(self, batch: Batch) -> bool:
        """Try a new batch shape, and compile for it: after a save, as a stop request ends the
        process there. True where the budget does not suffice for that. Raises Trouble that all
        ranks agree on if memory does not suffice."""
        if not self.shape_trial.is_needed(batch):
            return False
        if self.shape_trial.compiles:
            self.records.log.flush()
            self.ranks.meet()
            self.save(wait=True)
            self.ranks.meet()
            money = self.guards.money
            if self.needs_money(money.times.compiling_s) and self.votes_to_stop():
                return True
        with self.guards.watchdog.long_work():
            self.shape_trial(batch)
        return False

    def train_on(self, loaded: Loaded) -> None:
        """Make one step and log it; a batch that a remedy skips is only recorded."""
        batch = loaded.batch
        epoch = round(batch.position / self.timeline.samples, 4)
        progress = {"step": batch.step, "position": batch.position, "epoch": epoch}
        if self.step.remedies.skips(batch.position):
            self.state.position, self.state.step = batch.end, batch.step + 1
            self.records.log.flush()
            parts = self.spans.lap().parts()
            self.records.events.write("skipped", **progress, batch=batch.size, parts=parts)
            return
        sums, work = self.step(loaded), loaded.work
        self.records.log.step(
            sums,
            **progress,
            batch=batch.size,
            images=len(loaded.labels),
            lr=self.step.rate,
            lap=self.spans.lap(shares_of(work)),
            work=work,
            **self.exchanged(),
        )

    def exchanged(self) -> dict[str, Any]:
        """What this rank sent since the last call, in bytes and seconds; empty for one rank."""
        if self.step.exchange is None:
            return {}
        sent, seconds = self.step.exchange.take()
        return {"sent": {"bytes": sent, "seconds": seconds}}

    def between_steps(self) -> bool:
        """Stop, evaluate or save if that is due; True if the run stops here."""
        if self.evaluation_is_due():
            self.needs_money(self.guards.money.times.evaluating_s)
        if self.votes_to_stop():
            self.save(wait=True)
            self.leave_together()
            return True
        best: bool | None = False
        if self.evaluation_is_due():
            with self.spans("evaluation"):
                best = self.evaluate()
            if best is None:
                self.save(wait=True)
                self.leave_together()
                return True
        if best or self.agreement.due:
            self.save(best=bool(best))
        self.report()
        self.records.verdicts()
        return False

    def votes_to_stop(self) -> bool:
        """Whether the ranks have agreed to stop. Raises Trouble if they agree on trouble."""
        losses, saves = self.guards.losses, self.records.saves
        self.guards.watchdog.beat()
        if saves.due and self.agreement.meets_next:
            self.records.log.flush()
        if self.run_is_lost():
            vote = RUN_LOST
        elif losses.exploding:
            vote = DIVERGED
        else:
            vote = self.stop_vote()
        # While the loss is far too high, a save could replace a good checkpoint.
        agreed = self.agreement.poll(vote, saves.due and not losses.high)
        if agreed == RUN_LOST:
            self.guards.run.require_place()
            raise StokerError(f"another rank no longer has {self.guards.run.path}")
        if agreed == DIVERGED:
            raise self.explosion()
        self._is_spent = agreed == SPENT
        if self._is_spent:
            self.guards.stop.request(ELSEWHERE)
        return agreed in (STOP, SPENT)

    def stop_vote(self) -> int:
        if not self.guards.stop:
            return GO_ON
        return SPENT if is_budget_stop(self.guards.stop.reason) else STOP

    def needs_money(self, work_s: float) -> bool:
        """Let the ranks decide at the next poll whether the budget suffices for work of some
        length; whether there is a budget."""
        if self.guards.money.limited:
            self.guards.money.require(work_s)
            self.agreement.meet_next()
        return self.guards.money.limited

    def leave_together(self) -> None:
        """Wait for the save of rank 0 where a budget is spent: the first process that ends with
        that may end all the others."""
        if self._is_spent:
            self.ranks.meet()

    def run_is_lost(self) -> bool:
        """Whether the run directory was moved, removed or replaced; looks once a second."""
        if self._look_at > (now := time.monotonic()):
            return False
        self._look_at = now + SECONDS_BETWEEN_LOOKS
        return not self.guards.run.is_in_place

    def explosion(self) -> Trouble:
        """The trouble about a loss that is far too high: the same kind and first step on every
        rank."""
        losses = self.guards.losses
        since = self.earliest(losses.since if losses.high else None)
        risen = self.ranks.largest([int(losses.exploding and not losses.stuck)])[0]
        kind = EXPLODING if risen else HIGH
        return Trouble(kind, self.state.step, losses.words(since, bool(risen)), since=since)

    def earliest(self, step: int | None) -> int:
        """The earliest step of all ranks; None on a rank that has none."""
        return -self.ranks.largest([-(1 << 62) if step is None else -step])[0]

    def while_waiting(self, seconds: float) -> None:
        """Raise StopNow if a stop is requested while a batch is late. Other ranks may be one step
        ahead: a rank waits for the batch for a while, to follow them, then leaves by itself."""
        limit_s = WAIT_SHARE * self.step.recipe.grace
        if self.guards.stop and (self.ranks.world == 1 or seconds > limit_s):
            raise StopNow

    def save(self, *, best: bool = False, wait: bool = False) -> None:
        self.guards.run.require_place()
        with self.spans("checkpoint"):
            if self.step.late_steps:
                # Ranks have met without the numbers of the latest steps: now these are written.
                self.records.log.flush()
                self.ranks.meet()
            if self.step.guards:
                self.step.raise_agreed_trouble(self.step.sentinel.first_bad(all_steps=True))
            self.records.saves.save(best=best, wait=wait)

    def report(self) -> None:
        """Write events about saves, stalls and notes from other threads."""
        events, guards = self.records.events, self.guards
        self.records.saves.report()
        while guards.watchdog.stalls:
            events.write("stall", step=self.state.step, words=guards.watchdog.stalls.pop(0))
        while guards.stop.notes:
            events.write("note", words=guards.stop.notes.pop(0))

    def evaluation_is_due(self) -> bool:
        position, evaluated = self.state.position, self.state.evaluated
        if self.loaders.evaluator is None or position in (0, evaluated):
            return False
        stride = self.step.recipe.eval_every * self.timeline.samples
        return position // stride > evaluated // stride or position == self.end

    def evaluate(self) -> bool | None:
        """Whether the model is as good as ever before, or better; None if a stop came first. Of
        equally good models the later one counts as best: it has learned more, which a few images
        may not show."""
        evaluator, state, events = self.loaders.evaluator, self.state, self.records.events
        assert evaluator is not None
        began, size = time.perf_counter(), self.timeline.stretches[-1].image_size
        self.records.log.flush()
        events.write("evaluating", step=state.step, position=state.position)
        events.flush()
        model, to_input = state.evaluated_model, self.step.to_input
        self.ranks.share_buffers(model)
        self.agreement.meet_next()
        try:
            evaluated = evaluator.run_with_answers(
                model, size, to_input, self.votes_to_stop, self.while_waiting
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise evaluates_too_many(evaluator.batch_size) from error
        self.agreement.meet_next()
        if evaluated is None:
            return None
        accuracy, answers = evaluated
        share, is_sound = accuracy.top1_share, math.isfinite(accuracy.loss)
        verdict = is_sound * ((share > state.best) + (share >= state.best))
        verdict = self.ranks.from_first(verdict)  # 2: better than before, 1: as good
        better = verdict > 1
        state.evaluated = state.position
        state.best = accuracy.top1_share if better else state.best
        state.stale = 0 if better else state.stale + 1
        events.write(
            "evaluation",
            step=state.step,
            position=state.position,
            epoch=round(state.position / self.timeline.samples, 4),
            **asdict(accuracy),
            seconds=round(time.perf_counter() - began, 3),
        )
        if answers and self.records.keep_evaluation:
            self.records.keep_evaluation(state.step, state.position, accuracy, answers)
        return verdict > 0
