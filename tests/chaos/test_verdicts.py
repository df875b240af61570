"""Live runs of every row of verdicts.toml: the verdict names the fault, and predicts the step time
without it.

    pytest tests/chaos/test_verdicts.py            one run a row, up to four where they are wrong
    pytest tests/chaos/test_verdicts.py --whole    twenty runs a row, at most one wrong

The rules themselves are tested on recorded runs, without the noise of a shared machine:
unit/measure/test_verdict_recordings.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from chaos.conftest import Tables
from chaos.trainers import TookTooLong, Trainers
from cores import Cores
from integration.namespaces import Cluster, missing
from quotas import missing_quota, quota_group
from samples import image_folder
from stoker.data.packing.pack import pack
from stoker.errors import INTERRUPTED
from stoker.measure.facts_from_events import facts_of_run
from stoker.run.directory import Run
from verdict_rows import (
    FLAGS,
    IMAGES,
    ROWS,
    RUNS,
    WITHIN,
    WRONG,
    Outcome,
    Row,
    batch_of,
    outcome_of,
)

pytestmark = pytest.mark.alone

TRIES = 4
"""Runs of a row where not all are wanted."""
RUN_S = 240
"""What a run may take."""
EPOCHS = 2
"""Of a run whose batches change from epoch to epoch."""


class NotJudged(Exception):
    """A run that was too slow to say anything about."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=4, images=IMAGES // 4, val=2, size=(160, 130))
    return pack(folder, root / "packed", workers=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    made = Cluster(2)
    try:
        yield made
    finally:
        made.remove()


def words(packed: Path, run: Path, row: Row) -> list[str]:
    """The command: as many epochs as the steps need; where the batch changes, an epoch each."""
    flags = f"{FLAGS} {row.flags}".split()
    if not row.larger:
        flags += ["--epochs", str(-(-row.steps * batch_of(row) // IMAGES))]
    else:
        recipe = run.parent / f"{run.name}.toml"
        phases = "[[phases]]\nfrom_epoch = {}\nimage_size = 48\nbatch_size = {}\n"
        sizes = (batch_of(row), batch_of(row) * row.larger)
        recipe.write_text("".join(phases.format(n, sizes[n % 2]) for n in range(EPOCHS)))
        last = sizes[(EPOCHS - 1) % 2]  # of which the flag would scale the others
        flags += ["--epochs", str(EPOCHS), "--recipe", str(recipe), "--batch-size", str(last)]
    return ["train", str(packed), "--run", str(run), *flags]


class Bench:
    """Runs rows."""

    def __init__(self, trainers: Trainers, packed: Path, place: Path) -> None:
        self.trainers, self.packed, self.place = trainers, packed, place
        self.done = 0

    def train(
        self,
        row: Row,
        *,
        where: dict[str, Any] | None = None,
        meanwhile: Callable[[Run, list[int]], None] = lambda run, pids: None,
    ) -> Run:
        self.done += 1
        run = Run(self.place / f"run{self.done}")
        log = self.place / f"log{self.done}"
        span = {"every": row.every} if row.every else {"until": row.until or None}
        faults = [{**span, **fault} for fault in row.faults]
        try:
            codes = self.trainers.train(
                words(self.packed, run.path, row),
                log,
                ranks=row.ranks,
                faults=faults,
                where={"cores": row.cores, "threads": row.threads, **(where or {})},
                meanwhile=partial(meanwhile, run),
                within_s=RUN_S,
            )
        except TookTooLong as error:
            raise NotJudged(str(error)) from error
        if INTERRUPTED in codes:
            raise NotJudged(f"it gave up: {log.read_text()[-2000:]}")
        assert codes == [0] * row.ranks, log.read_text()
        return run

    def try_once(self, row: Row, cluster: Callable[[], Cluster]) -> Outcome | None:
        """The outcome of a run; None where there is none."""
        try:
            return self.outcome(row, cluster)
        except NotJudged as error:
            print(f"{row.name}: not judged: {error}")
            return None

    def outcome(self, row: Row, cluster: Callable[[], Cluster]) -> Outcome:
        """The outcome of a new run; raises NotJudged where there is none."""
        return self.judged(row, self.run(row, cluster))

    def run(self, row: Row, cluster: Callable[[], Cluster]) -> Run:
        """A new run, on two machines where the row limits the link between them."""
        if row.quota:
            return self.run_under_quota(row)
        if not row.rate:
            return self.train(row)
        machines = cluster().machines
        for machine in machines:
            machine.rate(row.rate)

        def free_at_its_step(run: Run, pids: list[int]) -> None:
            wait_for_step(run, row.until)
            for machine in machines:
                machine.rate(None)

        spaces = [machine.space for machine in machines]
        where = {"spaces": spaces, "address": machines[0].address}
        return self.train(row, where=where, meanwhile=free_at_its_step)

    def run_under_quota(self, row: Row) -> Run:
        """A new run in a control group whose CPU quota ends at a step."""
        if why := missing_quota():
            pytest.skip(why)
        with quota_group() as group:

            def free_at_its_step(run: Run, pids: list[int]) -> None:
                group.set(row.quota)
                group.add(*pids)
                wait_for_step(run, row.until)
                group.set(None)

            return self.train(row, meanwhile=free_at_its_step)

    def judged(self, row: Row, run: Run) -> Outcome:
        outcome = outcome_of(row, partial(facts_of_run, run, 1))
        if outcome is None:
            raise NotJudged("no steps to judge")
        verdict = outcome.verdict
        print(
            f"{row.name}: {verdict.limit}, {verdict.step_s:.4f} s; "
            f"predicted {verdict.without_s}, measured {outcome.truth_s:.4f} s"
        )
        return outcome


def wait_for_step(run: Run, step: int) -> None:
    give_up = time.monotonic() + RUN_S / 2
    while time.monotonic() < give_up:
        done = run.merged("step") if run.exists else []
        if run.end() or (done and done[-1]["step"] >= step):
            return
        time.sleep(0.2)
    raise NotJudged(f"step {step} never came")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(
    trainers: Trainers,
    packed: Path,
    tmp_path: Path,
    tables: Tables,
    whole: bool,
    request: pytest.FixtureRequest,
    cores: Cores,
    row: Row,
) -> None:
    bench = Bench(trainers, packed, tmp_path)
    machines = partial(request.getfixturevalue, "cluster")
    outcomes: list[Outcome] = []
    right = False
    for number in range(RUNS if whole else TRIES):
        if number and not whole:
            cores.wait_for_calm()
        outcome = bench.try_once(row, machines)
        if outcome is not None:
            outcomes.append(outcome)
            right = outcome.is_right(row)
            if right and not whole:
                break
    assert outcomes, "no run could be judged"
    tables.say(summary(row, outcomes))
    if not whole:
        # Neighbours on shared cores spoil a run now and then; a wrong rule spoils all of them.
        assert right, [outcome.verdict for outcome in outcomes]
        return
    named = [outcome for outcome in outcomes if outcome.names(row)]
    assert RUNS - len(named) <= WRONG, [outcome.verdict for outcome in outcomes]
    close = [outcome for outcome in named if outcome.is_close]
    assert RUNS - len(close) <= WRONG, [outcome.error for outcome in outcomes]


def summary(row: Row, outcomes: list[Outcome]) -> str:
    """A line of the table: the limits that were named, step times, and errors of predictions."""
    limits = dict(Counter(outcome.verdict.limit for outcome in outcomes))
    step = median(outcome.verdict.step_s for outcome in outcomes) * 1000
    truth = median(outcome.truth_s for outcome in outcomes) * 1000
    errors = sorted(outcome.error for outcome in outcomes if outcome.error is not None)
    line = f"{row.name:<26}{limits!s:<26} a step {step:6.1f} ms, without {truth:6.1f} ms"
    if not errors:
        return line
    close = sum(outcome.is_close for outcome in outcomes)
    spread = f"predicted {errors[0]:+.0%} to {errors[-1]:+.0%}, median {median(errors):+.1%}"
    return f"{line}, {spread}, {close} of {len(outcomes)} within {WITHIN:.0%}"
