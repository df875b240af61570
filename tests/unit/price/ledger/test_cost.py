"""The ledger adds up, never falls, and equals the invoice of a provider."""

from __future__ import annotations

import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from priced_runs import (
    BATCH,
    FakeCluster,
    Rented,
    end,
    new_run,
    price,
    start,
    step,
    write,
)
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.cost import cost_of
from stoker.price.ledger.life_sign import WIDTH, LifeSign, life_sign, life_sign_path
from stoker.price.ledger.rank_time import CATEGORIES
from stoker.run.directory import Run

MACHINE = {"boot": "b", "command_s": 100.0, "began_s": 110.0}
PER_SECOND = price(3600.0)
STATED = HourlyPrice(dollars=7200.0, kind="stated", source="a test", date="2026-08-22")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path / "run")


def dollars(run: Run) -> dict[str, float]:
    """Dollars by category, without those that are 0."""
    return {name: round(value, 9) for name, value in cost_of(run).dollars.items() if value}


def test_each_category(run: Run) -> None:
    events = [
        start(startup_s=5.0, price=PER_SECOND, machine=MACHINE),
        step(0, compile=4.0, read=1.0, decode=2.0, to_device=0.5, forward=3.0, backward=4.0),
        step(1, exchange=1.5, optimiser=0.5, other=0.25, checkpoint=2.0, evaluation=6.0),
        end(parts={"checkpoint": 1.0, "other": 0.5}, clock_s=150.0),
    ]
    write(run, 1, 0, events)
    assert dollars(run) == {
        "starting": 10 + 5 + 4.0,  # the command before this process, the process, compiling
        "data": 3.0,
        "useful": 7.5 + 0.75,
        "exchange": 1.5,
        "saving": 3.0,
        "evaluating": 6.0,
        "idle": 0.5 + 40 - 31.25,  # to the clock of the end
    }
    assert cost_of(run).total == pytest.approx(50.0, abs=1e-9)
    assert cost_of(run).hours == pytest.approx(50 / 3600)


def test_steps_that_a_later_attempt_repeats_are_redone(run: Run) -> None:
    first = [step(n, forward=1.0, checkpoint=0.5, evaluation=0.25) for n in range(6)]
    write(run, 1, 0, [start(price=PER_SECOND), *first])
    assert dollars(run) == {"useful": 6.0, "saving": 3.0, "evaluating": 1.5}
    before = cost_of(run).total
    write(run, 2, 0, [start(4 * BATCH, price=PER_SECOND), step(4, forward=1.0)])
    # The save and the evaluation at step 4 are what the second attempt began from.
    assert dollars(run) == {"useful": 5.0, "redone": 2.75, "saving": 2.5, "evaluating": 1.25}
    assert cost_of(run).total == pytest.approx(before + 1)


def test_a_machine_is_paid_once_for_several_ranks(run: Run) -> None:
    facts = {"local_world": 2, "machine": {**MACHINE, "command_s": 110.0}}
    done = end(parts={}, clock_s=120.0)
    write(run, 1, 0, [start(local_rank=0, price=PER_SECOND, **facts), step(0, forward=10.0), done])
    early = end(parts={}, clock_s=116.0)
    write(run, 1, 1, [start(local_rank=1, **facts), step(0, forward=4.0, data=2.0), early])
    assert dollars(run) == {"useful": 7.0, "data": 1.0, "idle": 2.0}


def test_two_machines_are_paid_each_at_its_price(run: Run) -> None:
    for rank, amount in ((0, 3600.0), (1, 7200.0)):
        host = {"host": f"node{rank}"}
        begin = start(local_rank=0, price=price(amount), environment=host)
        write(run, 1, rank, [begin, step(0, forward=10.0)])
    cost = cost_of(run)
    assert cost.total == pytest.approx(30.0)
    assert [machine.host for machine in cost.machines] == ["node0", "node1"]
    assert cost.hours == pytest.approx(10 / 3600)


def test_a_price_may_change_in_an_attempt(run: Run) -> None:
    change = {"kind": "price", "price": price(7200.0)}
    steps = [step(0, forward=10.0), change, step(1, forward=10.0)]
    write(run, 1, 0, [start(price=PER_SECOND), *steps])
    assert dollars(run) == {"useful": 30.0}
    assert [each.dollars for each in cost_of(run).prices] == [3600.0, 7200.0]


def test_a_stated_price_replaces_the_recorded_ones(run: Run) -> None:
    change = {"kind": "price", "price": price(1.0)}
    write(run, 1, 0, [start(price=PER_SECOND), step(0, forward=10.0), change, step(1, forward=1.0)])
    assert cost_of(run, STATED).total == pytest.approx(22.0)


def test_a_run_without_a_price_costs_nothing_that_is_known(run: Run) -> None:
    write(run, 1, 0, [start(startup_s=2.0), step(0, forward=10.0)])
    cost = cost_of(run)
    assert (cost.total, cost.prices, cost.unpriced_s) == (0.0, [], 12.0)


def test_the_same_command_is_billed_from_attempt_to_attempt(run: Run) -> None:
    """Its ranks were killed at 130 s and started again at 160 s; another command began at 900 s."""
    write(
        run, 1, 0, [start(startup_s=10.0, price=PER_SECOND, machine=MACHINE), step(0, forward=10.0)]
    )
    again = {**MACHINE, "began_s": 160.0}
    write(run, 2, 0, [start(BATCH, 5.0, price=PER_SECOND, machine=again), step(1, forward=5.0)])
    assert dollars(run) == {"starting": 10 + 10 + 5.0, "useful": 15.0, "idle": 30.0}
    other = {**MACHINE, "command_s": 900.0, "began_s": 900.0}
    write(run, 3, 0, [start(2 * BATCH, price=PER_SECOND, machine=other), step(2, forward=1.0)])
    assert dollars(run)["idle"] == 30.0


@pytest.mark.parametrize(("jump", "idle"), [(4.0, 4.0), (-1e6, 0.0), (1e9, 60.0)])
def test_a_wall_clock_that_is_set_does_not_count(run: Run, jump: float, idle: float) -> None:
    """Only after its last step is a killed attempt timed by it, and then within limits."""
    wall = 1.7e9
    events = [
        {**start(price=PER_SECOND), "time": wall},
        {**step(0, forward=10.0), "time": wall + 1e6},
        {**step(1, forward=10.0), "time": wall},
        {"kind": "evaluating", "position": 20, "time": wall + jump},
    ]
    write(run, 1, 0, events)
    assert dollars(run) == {"useful": 20.0, **({"idle": idle} if idle else {})}


def test_a_killed_attempt_is_billed_to_its_last_sign_of_life(run: Run) -> None:
    machine = {"kind": "machine", "local_rank": 0, "price": PER_SECOND, "machine": MACHINE}
    write(run, 1, 0, [machine])
    assert dollars(run) == {"starting": 10.0}
    life_sign_path(run, 1, 0).write_text("125.500            \n")
    assert dollars(run) == {"starting": 25.5}  # it did not get further
    begun = start(startup_s=5.0, price=PER_SECOND, machine=MACHINE)
    write(run, 1, 0, [machine, begun, step(0, forward=2.0)])
    assert dollars(run) == {"starting": 15.0, "useful": 2.0, "idle": 8.5}
    for damage in ("", "nan", "1e9", "-5", "12.5.1", "9" * 30, "\xff"):
        life_sign_path(run, 1, 0).write_text(damage)
        assert dollars(run) == {"starting": 15.0, "useful": 2.0}


def test_signs_of_life_are_written_in_place(run: Run) -> None:
    run.new_attempt()
    life, paths = LifeSign(), [life_sign_path(run, 1, rank) for rank in (0, 1)]
    for rank, path in enumerate(paths):
        life.begin(path)
        first = life_sign(run, 1, rank)
        life.write()
        last = life_sign(run, 1, rank)
        assert first is not None and last is not None and 0 < first <= last
        assert path.stat().st_size == WIDTH
    life.close()
    assert (life_sign(run, 1, 0) or 0) <= (life_sign(run, 1, 1) or 0)
    LifeSign().begin(run.path / "no such folder" / "file")
    assert life_sign(run, 1, 7) is None


def test_dollars_as_an_axis(run: Run) -> None:
    steps = [step(n, forward=1.0) for n in range(6)]
    write(run, 1, 0, [start(startup_s=1.0, price=PER_SECOND), *steps])
    evaluation = {"kind": "evaluation", "images": 5, "top1": 2, "position": 50, "step": 5}
    resumed = [
        step(4, forward=1.0),
        {**evaluation, "seconds": 0.5},
        step(5, forward=1.0, evaluation=0.5),
    ]
    write(run, 2, 0, [start(4 * BATCH, 2.0, price=PER_SECOND), *resumed])
    cost = cost_of(run)
    assert [(point.position, point.dollars) for point in cost.points] == [
        *((10 * n, 1.0 + n) for n in range(1, 5)),
        (50, 10.0),
        (50, 10.5),
        (60, 11.5),
    ]
    assert cost.dollars_at(position=0) == 0.0
    assert cost.dollars_at(position=45) == cost.dollars_at(step=4) == 5.0
    assert cost.dollars_at(position=60) == cost.total == 11.5


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_it_equals_the_invoice(seed: int, machines: int, ranks: int) -> None:
    """Kills, restarts by the same command and by another one, and prices that change from one
    command to the next: the provider bills what the ledger says, to a hundredth of a cent."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(Path(folder) / "run")
        rented = [
            Rented(f"host{n}", chance.uniform(0.1, 40), chance.uniform(1, 1e6), 1.7e9 + n)
            for n in range(machines)
        ]
        cluster = FakeCluster(run, chance, rented, ranks)
        done, totals, same = 0, [0.0], False
        for _ in range(chance.randint(1, 5)):
            steps = chance.randint(0, 5)
            ending = chance.choice(["killed", "killed", "interrupted"])
            cluster.attempt(done, steps, ending, same_command=same)
            totals.append(cost_of(run).total)
            assert totals[-1] == pytest.approx(cluster.invoice, abs=1e-4)
            done += chance.randint(0, steps)
            same = ending == "killed" and chance.random() < 0.5
            for machine in rented:
                if same:
                    continue
                machine.rest(chance.uniform(0, 1000))
                machine.dollars = chance.uniform(0.1, 40)
        assert totals == sorted(totals)
        cost = cost_of(run)
        assert math.fsum(cost.dollars.values()) == pytest.approx(cost.total, abs=1e-9)
        assert sum(cost.seconds.values()) == pytest.approx(sum(m.total_s for m in cost.machines))
        curve = [point.dollars for point in cost.points]
        assert curve == sorted(curve) and all(value <= cost.total + 1e-9 for value in curve)


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-(2**60), 2**60), st.none()
)
PARTS = st.dictionaries(
    st.sampled_from(["data", "forward", "exchange", "checkpoint", "strange", "idle"]),
    NUMBERS,
    max_size=3,
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(
                ["attempt", "machine", "step", "skipped", "evaluation", "end", "price", "x"]
            )
        },
        optional={
            "time": NUMBERS,
            "parts": PARTS,
            "position": st.integers(-5, 500),
            "step": st.integers(-5, 50),
            "batch": NUMBERS,
            "startup_s": NUMBERS,
            "local_rank": st.integers(-1, 5),
            "local_world": st.integers(0, 5),
            "seconds": NUMBERS,
            "clock_s": NUMBERS,
            "outcome": st.just("finished"),
            "images": st.just(10),
            "top1": st.just(3),
            "price": st.one_of(
                st.none(), st.builds(lambda d: {**PER_SECOND, "dollars": d}, NUMBERS)
            ),
            "machine": st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {"boot": st.just("b"), "command_s": NUMBERS, "began_s": NUMBERS}
                ),
            ),
        },
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(EVENTS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_events_make_it_fail(attempts: list[list[list[dict[str, Any]]]]) -> None:
    """Whatever is in the files: no exception, nothing negative, and categories that add up."""
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(Path(folder) / "run")
        total = 0.0
        for number, ranks in enumerate(attempts, 1):
            for rank, events in enumerate(ranks):
                path = run.events_path(number, rank)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(json.dumps(event) + "\n" for event in events))
            cost = cost_of(run)
            assert all(0 <= cost.dollars[name] < math.inf for name in CATEGORIES)
            assert cost.total >= total * (1 - 1e-9) - 1e-9
            assert cost.dollars_at(step=3) >= 0
            total = cost.total
