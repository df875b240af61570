"""How one rank of an attempt spent its time, in categories of the ledger, from its events.

Invariants: times come from the monotonic measurements in the events: the parts of steps, the start
of the process, the clock of the `end` event. No wall clock that is set back or forward changes
them. Only where a killed rank left no sign of life, what it wrote after its last step is timed by
wall stamps, and a silence between two of those counts as at most LONGEST_SILENCE_S. No time is
negative.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.measure.spans import ONCE, WAITING
from stoker.price.hourly import HourlyPrice
from stoker.run.kinds import Event
from stoker.run.rows import NEVER

USEFUL, REDONE, DATA, EXCHANGE = "useful", "redone", "data", "exchange"
SAVING, EVALUATING, STARTING, IDLE = "saving", "evaluating", "starting", "idle"
CATEGORIES = (USEFUL, REDONE, DATA, EXCHANGE, SAVING, EVALUATING, STARTING, IDLE)
CATEGORY_OF = {
    **dict.fromkeys(WAITING, DATA),
    **dict.fromkeys(ONCE, STARTING),
    "exchange": EXCHANGE,
    "checkpoint": SAVING,
    "evaluation": EVALUATING,
}
"""The category of each part of a step; the other parts are useful."""
LONGEST_SILENCE_S = 60.0


class Tariff:
    """What a machine costs in the course of an attempt."""

    def __init__(self, price: HourlyPrice | None) -> None:
        self.prices = [price]
        self._from_s = [0.0]
        self._dollars = [0.0]
        """What the time before each change has cost."""

    @property
    def price(self) -> HourlyPrice | None:
        """The latest price."""
        return self.prices[-1]

    def change(self, at_s: float, price: HourlyPrice) -> None:
        """Let a price hold from a time on, which is not before the last change."""
        self._dollars.append(self.until(max(at_s, self._from_s[-1])))
        self._from_s.append(max(at_s, self._from_s[-1]))
        self.prices.append(price)

    def until(self, at_s: float) -> float:
        """Dollars from the start to a time."""
        number = max(bisect_right(self._from_s, at_s) - 1, 0)
        price = self.prices[number]
        rate = price.dollars / 3600 if price else 0.0
        return self._dollars[number] + rate * max(at_s - self._from_s[number], 0.0)

    @property
    def first_rate(self) -> float:
        """Dollars a second at the start."""
        first = self.prices[0]
        return first.dollars / 3600 if first else 0.0


@dataclass(frozen=True)
class Milestone:
    """A step or an evaluation that counts, and when it was done."""

    position: int
    step: int
    at_s: float
    is_evaluation: bool = False


@dataclass
class RankTime:
    """The time of one rank in one attempt, in seconds after the attempt began there."""

    tariff: Tariff
    lost_from: int = NEVER
    """The position from which on a later attempt repeated the steps."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    dollars: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    milestones: list[Milestone] = field(default_factory=list)
    now_s: float = 0.0
    """What is accounted for so far."""
    end_s: float = 0.0
    """When the rank was last known to run."""
    _is_started: bool = False
    _began_s: float | None = None
    _wall: float | None = None
    _silent_s: float = 0.0

    def read(self, events: Iterable[Event], alive_s: float | None = None) -> RankTime:
        """Account for the rows of the rank, none of which crosses `lost_from`; returns itself.
        `alive_s`: its last sign of life, by
        its machine's clock."""
        for event in events:
            self._take(event)
        if alive_s is not None and self._began_s is not None:
            self.end_s = max(self.end_s, alive_s - self._began_s)
            self._silent_s = 0.0
        self.end_s = max(self.end_s, self.now_s + self._silent_s)
        if not self._is_started:
            self._spend(STARTING, self.end_s - self.now_s)
        return self

    def _take(self, event: Event) -> None:
        self._listen_to_wall_clock(event)
        kind = event["kind"]
        if kind in ("machine", "attempt") and "machine" in event:
            self._began_s = event["machine"]["began_s"]
        if kind == "attempt" and not self._is_started:
            self._spend(STARTING, event["startup_s"])
            self._is_started = True
        elif kind == "price":
            self.tariff.change(self.now_s, price_of(event["price"]))
        elif kind in ("steps", "skipped"):
            self._take_steps(event)
        elif kind == "evaluation":
            self._take_evaluation(event)
        elif kind == "end":
            # Time outside of all spans is waiting for other ranks here, not part of a step.
            self._spend_parts({IDLE if p == "other" else p: s for p, s in event["parts"].items()})
            if "clock_s" in event and self._began_s is not None:
                self.end_s = max(event["clock_s"] - self._began_s, self.now_s)
                self._silent_s = 0.0

    def _listen_to_wall_clock(self, event: Event) -> None:
        wall = event.get("time")
        if not isinstance(wall, int | float) or not 0 < wall < 1e11:
            return
        if event.get("parts") or self._wall is None:
            self._silent_s = 0.0
        else:
            self._silent_s += min(max(wall - self._wall, 0.0), LONGEST_SILENCE_S)
        self._wall = wall

    def _take_steps(self, event: Event) -> None:
        """Account for a row of steps, of which none or all are lost, or for a skipped step."""
        self._is_started = True  # also where the line that says so is damaged
        position, parts = event["position"], event["parts"]
        if position < self.lost_from:
            self._spend_parts(parts)
            last = event["last"] if "last" in event else event["step"]
            self._mark(position + event["batch"], last + 1, self.now_s)
            return
        # A save or an evaluation where the later attempt began was not lost.
        kept = ("checkpoint", "evaluation") if position == self.lost_from else ()
        for part, seconds in parts.items():
            is_kept = part in kept or part in ONCE
            self._spend(CATEGORY_OF[part] if is_kept else REDONE, seconds)

    def _take_evaluation(self, event: Event) -> None:
        if event["position"] <= self.lost_from:
            at_s = self.now_s + max(event.get("seconds", 0.0), 0.0)
            self._mark(event["position"], event.get("step", 0), at_s, is_evaluation=True)

    def _mark(self, position: int, step: int, at_s: float, *, is_evaluation: bool = False) -> None:
        self.milestones.append(Milestone(position, step, at_s, is_evaluation))

    def _spend_parts(self, parts: Mapping[str, float]) -> None:
        for part, seconds in parts.items():
            self._spend(IDLE if part == IDLE else CATEGORY_OF.get(part, USEFUL), seconds)

    def _spend(self, category: str, seconds: float) -> None:
        seconds = max(seconds, 0.0)
        until_s = self.now_s + seconds
        self.seconds[category] += seconds
        self.dollars[category] += self.tariff.until(until_s) - self.tariff.until(self.now_s)
        self.now_s = until_s


def price_of(recorded: Mapping[str, object]) -> HourlyPrice:
    """The price that an event recorded; its fields were checked when it was read."""
    names = ("kind", "source", "date", "provider", "machine", "zone")
    texts = {name: str(recorded.get(name, "")) for name in names}
    dollars = recorded["dollars"]
    assert isinstance(dollars, int | float)
    return HourlyPrice(dollars=float(dollars), **texts)
