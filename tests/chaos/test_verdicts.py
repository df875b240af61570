"""What holds a run up is named, and what it would take without it foretold: every row of
verdicts.toml.

    pytest tests/chaos/test_verdicts.py            until it is right, five times at most
    pytest tests/chaos/test_verdicts.py --whole    twenty times each, at most one wrong
"""

from __future__ import annotations

import os
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from chaos.conftest import Tables
from chaos.trainers import TookTooLong, Trainers
from integration.namespaces import Cluster, missing
from samples import image_folder
from stoker.data.packing.pack import pack
from stoker.errors import INTERRUPTED
from stoker.measure.facts_from_events import facts_of_run
from stoker.measure.verdict import Verdict, verdict_of
from stoker.run.directory import Run

FLAGS = (
    "--model resnet9_w16 --image-size 48 --batch-size 16 --checkpoint-interval 600 "
    "--eval-every 100 --no-rehearse --spot-notice off"
)
WITHIN = 0.15
"""How far off a foretold step may be."""
RUNS, WRONG, TRIES = 20, 1, 5
RUN_S, CALM_S = 240, 45
"""What a run may take, and how long to wait for cores that nobody else uses before the next."""
IMAGES = 800
EPOCHS = 2
"""Of a run whose batches change from epoch to epoch."""


@dataclass(frozen=True)
class Row:
    name: str
    limit: str
    faults: list[dict[str, Any]]
    flags: str = ""
    every: int = 0
    until: int = 0
    settled: int = 5
    steps: int = 84
    ranks: int = 1
    cores: int = 1
    threads: int = 0
    rate: str = ""
    larger: int = 0
    says: list[str] = field(default_factory=list)


ROWS = [
    Row(**row)
    for row in tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text())["row"]
]


class NotJudged(Exception):
    """A run that was too slow to say anything about."""


@dataclass(frozen=True)
class Outcome:
    """One run: what was said, and how long a step took once the fault was gone."""

    verdict: Verdict
    truth_s: float

    @property
    def off(self) -> float | None:
        """How far the foretold step is from the truth."""
        foretold = self.verdict.without_s
        return None if foretold is None else foretold / self.truth_s - 1

    @property
    def is_close(self) -> bool:
        return self.off is None or abs(self.off) <= WITHIN

    def names(self, row: Row) -> bool:
        """Whether the limit is named, with the words that prove it."""
        sentence = self.verdict.lines()[0]
        return self.verdict.limit == row.limit and all(words in sentence for words in row.says)

    def is_right(self, row: Row) -> bool:
        return self.names(row) and self.is_close


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


def batch_of(row: Row) -> int:
    flags = f"{FLAGS} {row.flags}".split()
    return int(flags[len(flags) - flags[::-1].index("--batch-size")])


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
        flags += ["--epochs", str(EPOCHS), "--recipe", str(recipe)]
    return ["train", str(packed), "--run", str(run), *flags]


def epoch_of(row: Row, step: int) -> int:
    """Of a run whose batches are larger in every other epoch."""
    small = IMAGES // batch_of(row)
    epochs, rest = divmod(step, small + small // row.larger)
    return 2 * epochs + (rest >= small)


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
        meanwhile: Callable[[Run], None] = lambda run: None,
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
                meanwhile=lambda pids: meanwhile(run),
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
        if row.rate:
            machines = cluster().machines
            for machine in machines:
                machine.rate(row.rate)

            def free_at_its_step(run: Run) -> None:
                wait_for_step(run, row.until)
                for machine in machines:
                    machine.rate(None)

            spaces = [machine.space for machine in machines]
            where = {"spaces": spaces, "address": machines[0].address}
            run = self.train(row, where=where, meanwhile=free_at_its_step)
        else:
            run = self.train(row)
        verdict = verdict_of(facts_of_run(run, 1, partial(with_fault, row)))
        after = facts_of_run(run, 1, partial(without_fault, row))
        if verdict is None or after is None:
            raise NotJudged("no steps to judge")
        found = Outcome(verdict, after.step_s / (row.larger or 1))
        print(
            f"{row.name}: {verdict.limit}, {verdict.step_s:.4f} s; foretold {verdict.without_s}, "
            f"then {found.truth_s:.4f} s"
        )
        return found


def with_fault(row: Row, step: int) -> bool:
    """Whether a step is under the fault, and feels it in full."""
    if row.larger:
        return epoch_of(row, step) % 2 == 0
    if row.every:
        return (step // row.every) % 2 == 0 and step % row.every >= row.settled
    return not row.until or step < row.until


def without_fault(row: Row, step: int) -> bool:
    """Whether a step has forgotten the fault; where there is none, all have."""
    if row.larger:
        return epoch_of(row, step) % 2 == 1
    if row.every:
        return (step // row.every) % 2 == 1 and step % row.every >= row.settled
    return step >= row.until + row.settled


def wait_for_step(run: Run, step: int) -> None:
    give_up = time.monotonic() + RUN_S / 2
    while time.monotonic() < give_up:
        done = run.merged("step") if run.exists else []
        if run.end() or (done and done[-1]["step"] >= step):
            return
        time.sleep(0.2)
    raise NotJudged(f"step {step} never came")


class Cores:
    """How busy others keep the cores, by how long the same work takes on them."""

    def __init__(self) -> None:
        self.quickest_s = self.now_s()

    def now_s(self) -> float:
        """What the work takes now, on the slowest of the cores."""
        usable, took = os.sched_getaffinity(0), []
        try:
            for core in usable:
                os.sched_setaffinity(0, {core})
                began = time.perf_counter()
                sum(range(5_000_000))
                took.append(time.perf_counter() - began)
        finally:
            os.sched_setaffinity(0, usable)
        return max(took)

    def wait_for_calm(self) -> None:
        """Until they are about as quick as ever, but not for long."""
        give_up = time.monotonic() + CALM_S
        while time.monotonic() < give_up:
            now_s = self.now_s()
            self.quickest_s = min(self.quickest_s, now_s)
            if now_s < 1.15 * self.quickest_s:
                return
            time.sleep(0.5)


@pytest.fixture(scope="module")
def cores() -> Cores:
    return Cores()


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
    found: list[Outcome] = []
    right = False
    for number in range(RUNS if whole else TRIES):
        if number and not whole:
            cores.wait_for_calm()
        outcome = bench.try_once(row, machines)
        if outcome is not None:
            found.append(outcome)
            right = outcome.is_right(row)
            if right and not whole:
                break
    assert found, "no run could be judged"
    tables.say(summary(row, found))
    if not whole:
        # Neighbours on shared cores spoil a run now and then; a rule that is wrong, all of them.
        assert right, [outcome.verdict for outcome in found]
        return
    named = [outcome for outcome in found if outcome.names(row)]
    assert RUNS - len(named) <= WRONG, [outcome.verdict for outcome in found]
    close = [outcome for outcome in named if outcome.is_close]
    assert RUNS - len(close) <= WRONG, [outcome.off for outcome in found]


def summary(row: Row, found: list[Outcome]) -> str:
    named = dict(Counter(outcome.verdict.limit for outcome in found))
    step = median(outcome.verdict.step_s for outcome in found) * 1000
    truth = median(outcome.truth_s for outcome in found) * 1000
    offs = sorted(outcome.off for outcome in found if outcome.off is not None)
    said = f"{row.name:<26}{named!s:<26} a step {step:6.1f} ms, without {truth:6.1f} ms"
    if not offs:
        return said
    close = sum(outcome.is_close for outcome in found)
    spread = f"foretold {offs[0]:+.0%} to {offs[-1]:+.0%}, median {median(offs):+.1%}"
    return f"{said}, {spread}, {close} of {len(found)} within {WITHIN:.0%}"
