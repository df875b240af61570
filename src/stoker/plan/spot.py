"""What a run takes on spot machines: expected time, dollars, interruptions and redone work.

Invariants: pure. Interruptions come at a constant rate for each machine, whatever came before, and
any one of them ends the attempt. Saves come as the product makes them: `save_interval.derive` says
how often, and an attempt makes its first save early, to measure it. Without a notice the work since
the last save is redone; with one the run saves and stops, and loses none. Starting again takes
`start_s` of a billed machine, during which it may be lost once more, after `wait_s` without one.
Rate 0 leaves the work, the saves and one start.

With rate r, segments of s = interval + save, and starts of R = start + save (without a notice):
machine time = (e^(rR) - 1) / r + segments x e^(rR) x (e^(rs) - 1) / r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stoker.errors import BadRequest
from stoker.survive.save_interval import UNKNOWN_S, Interval, derive
from stoker.text import seconds

HOURS_BETWEEN = 4.0
"""The default of the recipe's `interruption_hours`, from which a run derives its saves."""
NEVER_HOURS = 1e9
"""Hours between interruptions from which on there are none."""
MOST_LOSSES = 5.0
"""Interruptions during one start, or between two saves, above which a run does not end."""
RANGE = (0.05, 0.95)
"""The quantiles between which a run ends in 90 % of cases."""


@dataclass(frozen=True, kw_only=True)
class SpotTerms:
    """What is known of the machines and the run."""

    hours_between: float = HOURS_BETWEEN
    """Hours that one machine is expected to last; infinite: it is not interrupted."""
    machines: int = 1
    """Machines that train together: the loss of one ends the attempt of all."""
    start_s: float
    """Billed seconds from the start of a machine to the first new step."""
    wait_s: float = 0.0
    """Seconds without a machine after an interruption: not billed."""
    save_s: float
    """Seconds that a save takes from training."""
    notice: bool = False
    """Whether a notice comes in time for a last save."""
    checkpoint_interval: float = 0.0
    """The recipe's key: seconds between saves; 0: derived."""

    @property
    def rate(self) -> float:
        """Interruptions a second."""
        never = self.hours_between >= NEVER_HOURS
        return 0.0 if never else self.machines / (3600 * self.hours_between)

    @property
    def interval(self) -> Interval:
        """How often the run saves, by the product's own rule."""
        if self.checkpoint_interval:
            return Interval(self.checkpoint_interval, self.save_s)
        return derive(self.save_s, min(self.hours_between, NEVER_HOURS))


@dataclass(frozen=True)
class SpotForecast:
    """Expected values; `low_h` and `high_h` hold the machine hours in 90 % of cases."""

    work_h: float
    machine_h: float
    """Hours for which each machine is billed."""
    wall_h: float
    """Hours from the first start to the end, waits for machines included."""
    interruptions: float
    redone_h: float
    """Work that is done again, and saves that were not finished."""
    saving_h: float
    starting_h: float
    low_h: float
    high_h: float
    interval_s: float

    def dollars(self, price_per_hour: float, machines: int = 1) -> float:
        """The expected cost at a price for one machine."""
        return self.machine_h * price_per_hour * machines

    def dollar_range(self, price_per_hour: float, machines: int = 1) -> tuple[float, float]:
        """The cost between which 90 % of runs lie, at a price that does not change."""
        each = price_per_hour * machines
        return self.low_h * each, self.high_h * each


@dataclass(frozen=True)
class Losses:
    """How many attempts are lost, and what each costs in seconds, its new start included."""

    mean: float
    """Expected number of lost attempts."""
    spread: float
    """Its variance divided by its mean."""
    variance: float
    """Of the seconds that one of them costs."""
    cost_s: float = 0.0


def forecast_spot(work_hours: float, terms: SpotTerms) -> SpotForecast:
    """The forecast of a run with so many hours of work: steps, evaluations and waits for data.
    Raises ValueError for work or terms below 0, and BadRequest where machines last so short that
    the run would hardly get on."""
    if work_hours < 0 or min(terms.start_s, terms.wait_s, terms.save_s) < 0:
        raise ValueError("work, starts, waits and saves take no negative time")
    if terms.hours_between <= 0 or terms.machines < 1:
        raise ValueError("a machine lasts for a time above 0, and a run has a machine")
    work_s, rate, interval = work_hours * 3600, terms.rate, terms.interval
    longest_s = max(terms.start_s + terms.save_s, interval.seconds + terms.save_s)
    if rate * longest_s > MOST_LOSSES:
        raise BadRequest(
            f"machines are lost every {seconds(1 / rate)}, but a start or the time between two "
            f"saves takes {seconds(longest_s)}: choose machines that last longer"
        )
    lengths = with_notice if terms.notice else without_notice
    saving_s, redone_s, losses = lengths(work_s, terms)
    first_start_s = mean_start(terms.start_s, rate)
    # A lost attempt costs its part of a segment, counted in redone_s, and a start.
    starting_s = first_start_s + losses.mean * mean_start(terms.start_s, rate)
    machine_s = work_s + saving_s + redone_s + starting_s
    interruptions = rate * machine_s
    quiet_s = min(quiet_run(work_s, terms), machine_s)
    cost_s = (machine_s - quiet_s) / losses.mean if losses.mean else 0.0
    low, high = (quiet_s + quantile(replace(losses, cost_s=cost_s), share) for share in RANGE)
    return SpotForecast(
        work_h=work_hours,
        machine_h=machine_s / 3600,
        wall_h=(machine_s + interruptions * terms.wait_s) / 3600,
        interruptions=interruptions,
        redone_h=redone_s / 3600,
        saving_h=saving_s / 3600,
        starting_h=starting_s / 3600,
        low_h=low / 3600,
        high_h=high / 3600,
        interval_s=interval.seconds,
    )


def quiet_run(work_s: float, terms: SpotTerms) -> float:
    """Seconds of a run that nothing interrupts: its start, its work and its saves."""
    first_s = terms.checkpoint_interval or UNKNOWN_S
    saves = 1 + max(0, math.ceil((work_s - first_s) / terms.interval.seconds))
    return terms.start_s + work_s + saves * terms.save_s


def mean_start(start_s: float, rate: float) -> float:
    """Expected machine seconds until a start succeeds that is begun again when it is lost."""
    return math.expm1(rate * start_s) / rate if rate else start_s


def start_variance(start_s: float, rate: float) -> float:
    """Variance of the machine seconds until a start succeeds."""
    if not rate:
        return 0.0
    lost = math.expm1(rate * start_s)  # expected number of lost starts
    each, square = truncated(start_s, rate)
    return lost * (square - each**2) + lost * (1 + lost) * each**2


def truncated(length_s: float, rate: float) -> tuple[float, float]:
    """Mean and mean square of the time of an interruption that comes within so many seconds."""
    x = rate * length_s
    if x < 1e-4:  # the difference of nearly equal numbers would lose all digits
        return length_s / 2, length_s**2 / 3
    rest = length_s / math.expm1(x)
    mean = 1 / rate - rest
    return mean, 2 * mean / rate - length_s * rest


def without_notice(work_s: float, terms: SpotTerms) -> tuple[float, float, Losses]:
    """Seconds of saves, of work that is redone, and the lost attempts of a run that is told
    nothing. The early save of an attempt is taken as its first second: part of its start."""
    rate, interval_s, save_s = terms.rate, terms.interval.seconds, terms.save_s
    whole, rest_s = divmod(work_s, interval_s)
    segments = [(whole, interval_s + save_s), (1.0, rest_s + save_s)]
    ready_s = terms.start_s + save_s
    again_s = mean_start(ready_s, rate)
    lost, redone_s, square_s, spread = 0.0, 0.0, 0.0, 0.0
    for count, length_s in segments:
        each = count * math.expm1(rate * length_s)
        mean, square = truncated(length_s, rate)
        lost, redone_s, square_s = lost + each, redone_s + each * mean, square_s + each * square
        spread += each * math.exp(rate * length_s)
    own_saves = whole + 1 + (1 + lost)
    saving_s = own_saves * save_s
    # An early save that is interrupted counts as redone: it is what the longer start adds.
    extra_s = (1 + lost) * (again_s - mean_start(terms.start_s, rate) - save_s)
    each_s = redone_s / lost if lost else 0.0
    variance = (square_s / lost - each_s**2 if lost else 0.0) + start_variance(ready_s, rate)
    losses = Losses(lost, spread / lost if lost else 1.0, variance)
    return saving_s, redone_s + extra_s, losses


def with_notice(work_s: float, terms: SpotTerms) -> tuple[float, float, Losses]:
    """Seconds of saves, of work that is redone (none), and the lost attempts of a run that saves
    when a notice comes. Every attempt makes one early save."""
    rate, interval_s, save_s = terms.rate, terms.interval.seconds, terms.save_s
    # Regular saves come when nothing interrupts an interval.
    regular = work_s * rate / math.expm1(rate * interval_s) if rate else work_s // interval_s
    lost = rate * work_s  # each of them adds a save of its own
    per_attempt = 1 + lost  # the early saves
    during_saves = rate * save_s * (regular + per_attempt)
    saving_s = (regular + 1 + per_attempt + lost) * save_s
    attempts = lost + during_saves
    return saving_s, 0.0, Losses(attempts, 1.0, start_variance(terms.start_s, rate))


def quantile(losses: Losses, share: float) -> float:
    """The seconds under which the cost of all lost attempts stays with this probability."""
    if losses.mean < 1e-9:
        return 0.0
    counts = distribution(losses.mean, losses.spread)
    low, high = (
        0.0,
        (losses.mean + 10 * math.sqrt(losses.mean * losses.spread) + 10)
        * (losses.cost_s + 5 * math.sqrt(losses.variance)),
    )
    for _ in range(60):
        middle = (low + high) / 2
        if probability(counts, losses, middle) < share:
            low = middle
        else:
            high = middle
    return high


def probability(counts: list[float], losses: Losses, cost_s: float) -> float:
    """The probability that all lost attempts cost at most so many seconds."""
    total = counts[0]
    for number, weight in enumerate(counts[1:], 1):
        sigma = math.sqrt(2 * number * losses.variance) or 1e-9
        total += weight * (1 + math.erf((cost_s - number * losses.cost_s) / sigma)) / 2
    return total


def distribution(mean: float, spread: float) -> list[float]:
    """Probabilities of 0, 1, 2, ... lost attempts: Poisson, or negative binomial where the variance
    is `spread` > 1 times the mean."""
    most = int(mean + 12 * math.sqrt(mean * max(spread, 1.0)) + 20)
    if spread <= 1 + 1e-9:
        logs = [number * math.log(mean) - mean - math.lgamma(number + 1) for number in range(most)]
    else:
        size, success = mean / (spread - 1), 1 / spread
        logs = [
            math.lgamma(number + size)
            - math.lgamma(size)
            - math.lgamma(number + 1)
            + size * math.log(success)
            + number * math.log1p(-success)
            for number in range(most)
        ]
    return [math.exp(log) for log in logs]
