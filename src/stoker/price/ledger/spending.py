"""What a run has cost at this moment, while an attempt runs.

Invariant: the total is what the ledger says of the earlier attempts, plus each machine's time since
then at its price, by one monotonic clock. It never falls, and it does not wait for events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stoker.price.ledger.cost import RunCost


@dataclass(frozen=True)
class RunningMachine:
    """A machine of the attempt that begins, by its own clock."""

    dollars_per_h: float
    name: int
    """The command's, see `command_name`."""
    command_s: float
    now_s: float

    def unbilled_s(self, billed_until: Mapping[int, float]) -> float:
        """Seconds of this command that no earlier attempt is billed for."""
        return max(self.now_s - billed_until.get(self.name, self.command_s), 0.0)


class Spending:
    """The running total of a run."""

    def __init__(
        self,
        earlier: RunCost,
        machines: Sequence[RunningMachine],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        billed_until = earlier.billed_until_s
        ages = [machine.unbilled_s(billed_until) for machine in machines]
        self._clock, self._began_s = clock, clock()
        self.per_hour = sum(machine.dollars_per_h for machine in machines)
        """Dollars an hour of all machines together."""
        owed = (age * m.dollars_per_h / 3600 for age, m in zip(ages, machines, strict=True))
        self._dollars = earlier.total + sum(owed)
        self._hours = earlier.hours + max(ages, default=0.0) / 3600

    @property
    def _since_h(self) -> float:
        return max(self._clock() - self._began_s, 0.0) / 3600

    @property
    def dollars(self) -> float:
        return self._dollars + self._since_h * self.per_hour

    @property
    def hours(self) -> float:
        """Hours for which attempts of the run ran."""
        return self._hours + self._since_h
