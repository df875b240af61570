"""The ledger of a run: what it has cost, by category, attempt and machine, from its events alone.

Invariants: a machine is paid once, however many ranks run on it: its time is the average of theirs.
The categories add up to the total. A later look never shows a smaller total, whatever is killed or
resumed, and at whatever prices. Time is billed only where the events prove it: after the last sign
of life of a killed attempt nothing is billed, unless the same command went on on that machine.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate

from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.life_sign import life_sign
from stoker.price.ledger.rank_time import (
    CATEGORIES,
    IDLE,
    STARTING,
    Milestone,
    RankTime,
    Tariff,
    price_of,
)
from stoker.run.directory import Run
from stoker.run.kinds import Event

Command = tuple[str, str, float]
"""A command on one boot of one machine: host, boot, and when it began."""


@dataclass(frozen=True, kw_only=True)
class MachineCost:
    """What one machine cost in one attempt."""

    attempt: int
    host: str
    tariff: Tariff
    command: Command | None
    """None in a run of an earlier version, which did not record it."""
    began_s: float
    """By the machine's clock; 0 where unknown."""
    end_s: float
    """Seconds after `began_s` until the last sign of life."""
    before_s: float
    """Seconds before `began_s` in which the command had the machine."""
    seconds: Mapping[str, float]
    dollars: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return self.before_s + self.end_s

    def until(self, at_s: float) -> float:
        """Dollars up to a time after `began_s`."""
        before = self.before_s * self.tariff.first_rate
        return before + self.tariff.until(min(max(at_s, 0.0), self.end_s))


@dataclass(frozen=True)
class CostPoint:
    """What a run had cost when a step or an evaluation was done."""

    position: int
    step: int
    dollars: float
    is_evaluation: bool = False


@dataclass(frozen=True)
class RunCost:
    """What a run has cost so far."""

    machines: list[MachineCost]
    points: list[CostPoint]
    """Of the steps and evaluations that count, in their order: dollars as an axis."""

    @property
    def dollars(self) -> dict[str, float]:
        """Dollars by category."""
        return {
            name: math.fsum(machine.dollars.get(name, 0.0) for machine in self.machines)
            for name in CATEGORIES
        }

    @property
    def total(self) -> float:
        return math.fsum(self.dollars.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all machines by category."""
        return {
            name: math.fsum(machine.seconds.get(name, 0.0) for machine in self.machines)
            for name in CATEGORIES
        }

    @property
    def hours(self) -> float:
        """Hours for which attempts ran, however many machines each had."""
        longest: dict[int, float] = {}
        for machine in self.machines:
            longest[machine.attempt] = max(longest.get(machine.attempt, 0.0), machine.total_s)
        return math.fsum(longest.values()) / 3600

    @property
    def prices(self) -> list[HourlyPrice]:
        """Every price that a machine had, the first one first, each once."""
        prices = (price for machine in self.machines for price in machine.tariff.prices)
        return list(dict.fromkeys(price for price in prices if price))

    @property
    def unpriced_s(self) -> float:
        """Machine seconds whose price is not known."""
        return math.fsum(m.total_s for m in self.machines if m.tariff.price is None)

    @property
    def billed_until_s(self) -> dict[int, float]:
        """Until when each command is billed, by its name and its machine's clock."""
        return {
            command_name(*machine.command[1:]): machine.began_s + machine.end_s
            for machine in self.machines
            if machine.command
        }

    def dollars_at(self, *, position: int | None = None, step: int | None = None) -> float:
        """What the run had cost when it had trained up to a position, or a step; 0 before the first
        one."""
        field, value = ("step", step or 0) if position is None else ("position", position)
        keys = list(accumulate((getattr(point, field) for point in self.points), max))
        number = bisect_right(keys, value)
        return self.points[number - 1].dollars if number else 0.0


def command_name(boot: str, began_s: float) -> int:
    """A number that names a command: by the boot of its machine, and when it began there."""
    digest = sha256(f"{boot} {round(began_s * 1000)}".encode()).digest()
    return int.from_bytes(digest[:7])


def cost_of(run: Run, stated: HourlyPrice | None = None) -> RunCost:
    """What a run has cost. A `stated` price counts in place of the recorded ones. Never raises for
    what is in the events."""
    machines: list[MachineCost] = []
    points: list[CostPoint] = []
    billed_until: dict[Command, float] = {}
    spent, lost_from = 0.0, run.lost_from()
    for attempt in run.attempts():
        own, milestones = attempt_cost(run, attempt, lost_from[attempt], billed_until, stated)
        for mark in milestones:
            dollars = spent + math.fsum(machine.until(mark.at_s) for machine in own)
            if points:  # an evaluation is timed alone, the steps around it with their pauses
                dollars = max(dollars, points[-1].dollars)
            points.append(CostPoint(mark.position, mark.step, dollars, mark.is_evaluation))
        machines += own
        spent = math.fsum([spent, *(d for machine in own for d in machine.dollars.values())])
    return RunCost(machines, points)


def attempt_cost(
    run: Run,
    attempt: int,
    lost_from: int,
    billed_until: dict[Command, float],
    stated: HourlyPrice | None,
) -> tuple[list[MachineCost], list[Milestone]]:
    """The cost of each machine of an attempt, and what rank 0 reached. `billed_until` is brought up
    to date."""
    machines, milestones = [], list[Milestone]()
    for members in machines_of(run, attempt):
        first = members[min(members)]
        recorded = first.get("price")
        price = stated or (price_of(recorded) if recorded else None)
        tariff, times = Tariff(price), dict[int, RankTime]()
        for rank in sorted(members):
            events = run.attempt_rows(attempt, rank, lost_from)
            if stated or times:  # only the machine's first rank says what it costs
                events = (event for event in events if event["kind"] != "price")
            alive_s = life_sign(run, attempt, rank)
            times[rank] = RankTime(tariff, lost_from).read(events, alive_s)
        milestones = times[0].milestones if 0 in times else milestones
        machine = machine_cost(attempt, members, times, tariff, billed_until)
        if machine.command:
            billed_until[machine.command] = machine.began_s + machine.end_s
        machines.append(machine)
    return machines, milestones


def machines_of(run: Run, attempt: int) -> Iterator[dict[int, Event]]:
    """The ranks of each machine of an attempt, each with the event that describes it. The machine
    of a rank that wrote other events alone is unknown."""
    groups: dict[tuple[str, int], dict[int, Event]] = {}
    for rank in run.ranks(attempt):
        events = run.attempt_rows(attempt, rank)
        start = next((event for event in events if event["kind"] in ("machine", "attempt")), None)
        if start is None:
            if any(True for _ in run.attempt_rows(attempt, rank)):
                groups["", -1 - rank] = {rank: {}}
            continue
        number = rank - start.get("local_rank", rank % start["local_world"])
        host = start["environment"].get("host", "")
        groups.setdefault((host, number), {})[rank] = start
    yield from groups.values()


def machine_cost(
    attempt: int,
    members: Mapping[int, Event],
    times: Mapping[int, RankTime],
    tariff: Tariff,
    billed_until: Mapping[Command, float],
) -> MachineCost:
    """The cost of a machine from the times of its ranks."""
    starts = [start["machine"] for start in members.values() if "machine" in start]
    host = next(iter(members.values())).get("environment", {}).get("host", "")
    began_s = min((start["began_s"] for start in starts), default=0.0)
    end_s = max(time.end_s for time in times.values())
    command, before_s, before = None, 0.0, STARTING
    if starts:
        command = (host, starts[0].get("boot", ""), round(starts[0]["command_s"], 3))
        before = IDLE if command in billed_until else STARTING
        before_s = max(began_s - billed_until.get(command, command[2]), 0.0)
    ranks = list(times.values())
    seconds = {n: math.fsum(rank.seconds[n] for rank in ranks) / len(ranks) for n in CATEGORIES}
    dollars = {n: math.fsum(rank.dollars[n] for rank in ranks) / len(ranks) for n in CATEGORIES}
    # What is left of the machine's time: ranks that ended early, and what no event accounts for.
    seconds[IDLE] += max(end_s - math.fsum(seconds.values()), 0.0)
    dollars[IDLE] += max(tariff.until(end_s) - math.fsum(dollars.values()), 0.0)
    seconds[before] += before_s
    dollars[before] += before_s * tariff.first_rate
    return MachineCost(
        attempt=attempt,
        host=host,
        tariff=tariff,
        command=command,
        began_s=began_s,
        end_s=end_s,
        before_s=before_s,
        seconds=seconds,
        dollars=dollars,
    )
