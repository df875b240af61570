"""The price of this machine in a run, and the run's budget: agreed by all ranks at the start.

Invariants: the first rank of each machine knows its price; rank 0 knows all of them, what earlier
attempts cost, and the limits. It alone requests a stop for a budget, and every rank takes part in
that decision at the same steps.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.launcher import COMMAND_START
from stoker.host.counters import boot_id, process_start_s
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.budget import (
    BUDGET,
    BudgetLimits,
    BudgetSpent,
    BudgetWatch,
    LongestTimes,
    longest_times,
    require_room,
)
from stoker.price.ledger.cost import command_name, cost_of
from stoker.price.ledger.life_sign import LifeSign, life_sign_path
from stoker.price.ledger.spending import RunningMachine, Spending
from stoker.price.machine_here import price_here
from stoker.run.directory import Run
from stoker.run.events import Events, Listener
from stoker.survive.stopping import StopRequest
from stoker.train.process_group import Ranks

MILLION = 1_000_000
PRICED, UNPRICED = 2, 1
"""What the first rank of a machine sends to the others."""


@dataclass(frozen=True)
class Money:
    """What a rank knows about the cost of the run."""

    price: HourlyPrice | None = None
    """Of this machine, on its first rank."""
    spending: Spending | None = None
    """On rank 0, where all prices are known."""
    watch: BudgetWatch | None = None
    """On rank 0 of a run with a budget."""
    life: LifeSign | None = None
    """On the first rank of a machine, where something is counted."""
    limited: bool = False
    """Whether the run has a budget: the same on every rank."""

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """What must hear the events of rank 0."""
        return (self.watch.times.take,) if self.watch else ()

    @property
    def times(self) -> LongestTimes:
        """The times that a budget is kept with, on rank 0 of a run that has one."""
        return self.watch.times if self.watch else LongestTimes()

    def begin(self, run: Run, attempt: int, ranks: Ranks, events: Events, began_s: float) -> None:
        """Record the machine of an attempt before anything else, and then that it is alive."""
        facts = {"local_rank": ranks.local_rank, "local_world": ranks.local_world}
        host = {"environment": {"host": socket.gethostname()}}
        events.write("machine", **facts, **self.facts(began_s), **host)
        events.flush()
        if self.life:
            self.life.begin(life_sign_path(run, attempt, ranks.rank))

    def guard(self) -> None:
        """Watch the budget from here on, on rank 0: training begins."""
        if self.watch:
            self.watch.begin()

    def require(self, work_s: float) -> None:
        """On rank 0, request a stop where work of some length would pass the budget."""
        if self.watch:
            self.watch.require(work_s)

    def facts(self, began_s: float) -> dict[str, Any]:
        """What the `attempt` event says of it. `began_s`: seconds after the start of this process
        at which the attempt began."""
        machine = {
            "boot": boot_id(),
            "command_s": command_start_s(),
            "began_s": round(process_start_s() + began_s, 3),
        }
        facts: dict[str, Any] = {"machine": machine}
        if self.price:
            facts["price"] = asdict(self.price)
        if self.spending:
            facts["spent"] = round(self.spending.dollars, 6)
            facts["per_hour"] = self.spending.per_hour
        return facts


NO_MONEY = Money()


def command_start_s() -> float:
    """When the command of this rank began, by the machine's monotonic clock."""
    return round(float(os.environ.get(COMMAND_START) or process_start_s()), 3)


@contextmanager
def counting(
    run: Run,
    ranks: Ranks,
    stop: StopRequest,
    limits: BudgetLimits,
    stated: float | None,
    spot_notice: str,
) -> Iterator[Money]:
    """What this rank knows about the cost of the run, for the block; what watches it ends
    with it. Raises BadRequest on every rank where a budget leaves no room, or has no price."""
    price = None if ranks.local_rank else price_here(stated, spot_notice)
    states, machines = exchanged(ranks, price)
    known = bool(states) and UNPRICED not in states
    limited = bool(ranks.largest([int(bool(limits))])[0])
    if ranks.from_first(int(limits.dollars is not None)) and not known:
        raise BadRequest(
            "--max-dollars needs the price of every machine, and one is not known: give it there "
            "with --price-per-hour"
        )
    spending, times, refusal = None, LongestTimes(), None
    if ranks.first and (known or limited):
        cost = cost_of(run)
        spending, times = Spending(cost, machines), longest_times(run)
        try:
            require_room(limits, cost, spending.per_hour, times)
        except BudgetSpent as error:
            refusal = error
    if ranks.from_first(int(refusal is not None)):
        raise refusal or BudgetSpent(f"{BUDGET}rank 0 refuses to start")
    with ExitStack() as leaving:
        watch, life = None, None
        if spending and limits:
            watch = BudgetWatch(limits, spending, times, stop)
            leaving.callback(watch.close)
        if not ranks.local_rank and (price or limited):
            life = LifeSign()
            leaving.callback(life.close)
        yield Money(price, spending if known else None, watch, life, limited=limited)


def exchanged(ranks: Ranks, price: HourlyPrice | None) -> tuple[list[int], list[RunningMachine]]:
    """For each machine whether its price is known, and what it costs; the same on every rank."""
    own = [0] * 5
    if ranks.local_rank == 0:
        command_s = command_start_s()
        name = command_name(boot_id(), command_s)
        dollars = round(price.dollars * MILLION) if price else 0
        stamps = round(command_s * 1000), round(time.monotonic() * 1000)
        own = [PRICED if price else UNPRICED, dollars, name, *stamps]
    numbers = [0] * 5 * ranks.world
    numbers[5 * ranks.rank : 5 * ranks.rank + 5] = own
    numbers = ranks.largest(numbers)
    rows = [numbers[i : i + 5] for i in range(0, len(numbers), 5) if numbers[i]]
    machines = [
        RunningMachine(dollars / MILLION, name, command_s=command / 1000, now_s=now / 1000)
        for _, dollars, name, command, now in rows
    ]
    return [row[0] for row in rows], machines
