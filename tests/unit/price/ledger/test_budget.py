"""A budget counts the whole run, is kept with a reserve, and refuses what it cannot pay for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import check_golden
from priced_runs import BATCH, end, new_run, price, start, step, write
from stoker.errors import BAD_REQUEST, BadRequest
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.budget import (
    BudgetLimits,
    BudgetSpent,
    BudgetWatch,
    LongestTimes,
    check_budget,
    is_budget_stop,
    longest_times,
    raise_budget_stop,
    require_room,
)
from stoker.price.ledger.cost import RunCost, command_name, cost_of
from stoker.price.ledger.spending import RunningMachine, Spending
from stoker.run.directory import Run
from stoker.survive.stopping import StopRequest

NOTHING = RunCost([], [])
PRICE = HourlyPrice(dollars=3600.0, kind="stated", source="a test", date="2026-08-22")


@dataclass
class FakeClock:
    now_s: float = 50.0

    def __call__(self) -> float:
        return self.now_s


def machine(
    dollars: float = 3600.0, command_s: float = 100.0, now_s: float = 110.0
) -> RunningMachine:
    name = command_name("b", command_s)
    return RunningMachine(dollars, name, command_s=command_s, now_s=now_s)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path / "run")


def spent_run(run: Run) -> Run:
    """A run that has cost $30 in 30 seconds, and whose saves took 2 s."""
    facts = {"boot": "b", "command_s": 100.0, "began_s": 100.0}
    checkpoint = {"kind": "checkpoint", "seconds": 1.5, "blocked_s": 0.5}
    begin = start(startup_s=5.0, price=price(3600.0), machine=facts)
    write(run, 1, 0, [begin, step(0, forward=20.0), checkpoint, end(parts={}, clock_s=130.0)])
    return run


def test_spending_counts_machines_from_the_start_of_their_command() -> None:
    clock = FakeClock()
    spending = Spending(NOTHING, [machine(), machine(7200.0, 100.0, 105.0)], clock)
    assert spending.dollars == pytest.approx(10 + 10)
    assert spending.hours == pytest.approx(10 / 3600)
    clock.now_s += 5
    assert spending.dollars == pytest.approx(20 + 15)
    clock.now_s -= 100
    assert spending.dollars == pytest.approx(20)


def test_spending_counts_no_second_of_a_command_twice(run: Run) -> None:
    cost, clock = cost_of(spent_run(run)), FakeClock()
    assert Spending(cost, [machine(now_s=140.0)], clock).dollars == pytest.approx(40)
    other = machine(command_s=500.0, now_s=510.0)
    assert Spending(cost, [other], clock).dollars == pytest.approx(40)


@given(st.floats(0.01, 1e4), st.floats(0, 1e4), st.floats(0, 100), st.floats(0, 1e4))
def test_seconds_left_end_at_the_first_limit(
    limit: float, dollars: float, hours: float, per_hour: float
) -> None:
    both = BudgetLimits(limit, 24.0).seconds_left(dollars, hours, per_hour)
    one = BudgetLimits(dollars=limit).seconds_left(dollars, hours, per_hour)
    other = BudgetLimits(hours=24.0).seconds_left(dollars, hours, per_hour)
    assert both == min(one, other)
    if 0 < one < 1e12:
        assert dollars + one / 3600 * per_hour == pytest.approx(limit)


def test_a_stop_is_requested_while_there_is_time_to_save() -> None:
    clock, stop = FakeClock(), StopRequest()
    times = LongestTimes(saving_s=3.0)
    times.steps_s.append(1.0)
    watch = BudgetWatch(
        BudgetLimits(dollars=100.0), Spending(NOTHING, [machine()], clock), times, stop
    )
    watch.require()
    assert not stop
    watch.require(work_s=60.0)  # an evaluation that would not be finished
    assert stop and is_budget_stop(stop.reason)
    stop.reason = None
    clock.now_s += 100 - 10 - times.leaving_s - 0.1
    watch.require()
    assert not stop
    clock.now_s += 0.2
    watch.require()
    assert is_budget_stop(stop.reason)
    assert watch.spending.dollars < 100 - times.leaving_s + 0.2


def test_the_watch_requests_a_stop_by_itself() -> None:
    stop = StopRequest()
    spending = Spending(NOTHING, [machine()])
    watch = BudgetWatch(BudgetLimits(hours=1e-6), spending, LongestTimes(), stop)
    watch.begin()
    watch._thread.join(timeout=60)
    assert is_budget_stop(stop.reason)
    watch.close()


def test_times_are_learned_from_events(run: Run) -> None:
    times = longest_times(spent_run(run))
    assert (times.saving_s, times.starting_s, list(times.steps_s)) == (2.0, 10.0, [20.0])
    slow = {"kind": "evaluation", "position": BATCH, "images": 1, "top1": 0, "seconds": 9.0}
    times.take(slow)
    times.take(step(1, compile=33.0, evaluation=9.0, forward=2.0))
    assert (times.evaluating_s, times.compiling_s, times.steps_s[-1]) == (9.0, 33.0, 2.0)


def test_a_budget_that_is_spent_refuses_a_start(run: Run) -> None:
    check_budget(BudgetLimits(), spent_run(run), None)
    check_budget(BudgetLimits(dollars=300.0, hours=1.0), run, PRICE)
    with pytest.raises(BudgetSpent):
        check_budget(BudgetLimits(dollars=31.0), run, PRICE)
    with pytest.raises(BudgetSpent):
        check_budget(BudgetLimits(hours=31 / 3600), run, None)
    assert BudgetSpent.exit_code == BAD_REQUEST


def test_sentences_golden(run: Run) -> None:
    spent_run(run)
    lines = []
    for limits, priced in (
        (BudgetLimits(dollars=31.0), PRICE),
        (BudgetLimits(hours=31 / 3600), None),
        (BudgetLimits(dollars=31.0), None),
    ):
        with pytest.raises(BadRequest) as refusal:
            check_budget(limits, run, priced)
        lines.append(str(refusal.value))
    with pytest.raises(BudgetSpent) as spent:
        raise_budget_stop(BudgetLimits(dollars=31.0).reason(30.5, 0.01, 3600.0))
    lines.append(str(spent.value))
    raise_budget_stop("SIGTERM")
    raise_budget_stop(None)
    check_golden("price_budget", lines)


def test_a_free_machine_has_no_limit_in_dollars() -> None:
    require_room(BudgetLimits(dollars=1.0), NOTHING, 0.0, LongestTimes())
