"""The charts of a run as plain data: lines, bars, a heat map and a time line.

Invariants: a chart has the same content however it is drawn (svg.py, png.py). A line has at most
MOST_POINTS points; a value that is not finite is kept, and drawn as a gap. Charts of several runs
are the same charts with more lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stoker.history.curves import Floats, TrainingPoint
from stoker.history.usage import Usage
from stoker.measure.spans import APART, PARTS
from stoker.show.explain import LABELS
from stoker.show.report.facts import RunFacts
from stoker.text import printable, seconds, size

MOST_POINTS = 300
MOST_LINES = 8
"""Lines in a chart: more cannot be told apart."""
MOST_HEAT_CLASSES = 100
PAUSE_S = 60.0
"""A line of measurements is broken where this many seconds have none."""
EPOCHS, HOURS, DOLLARS = "epochs", "hours", "dollars"
OWN = "own"
"""The axis of a chart that has one alone."""

Format = Callable[[float], str]


def as_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def as_share(value: float) -> str:
    return f"{value:.1%}"


def as_bytes(value: float) -> str:
    return size(value)


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit of a time axis: its seconds and its name."""
    for unit_s, unit in ((86400.0, "Days"), (3600.0, "Hours"), (60.0, "Minutes")):
        if seconds >= 2 * unit_s:
            return unit_s, unit
    return 1.0, "Seconds"


@dataclass(frozen=True)
class PageAxis:
    """A horizontal axis."""

    key: str
    label: str
    is_log: bool = False
    """Whether places on it are powers of ten."""


@dataclass(frozen=True)
class ChartLine:
    """One line."""

    name: str
    x: Mapping[str, Floats]
    """Its places on each axis, by the key of the axis."""
    y: Floats
    has_marks: bool = False
    """Whether each point has a mark: there are few."""
    ends: tuple[Floats, Floats] | None = None
    """Both ends of the interval of each value; NaN where there is none."""


@dataclass(frozen=True)
class Chart:
    """Lines over one axis of several."""

    key: str
    title: str
    description: str
    y_label: str
    axes: tuple[PageAxis, ...]
    series: tuple[ChartLine, ...]
    format: Format = as_number
    from_zero: bool = True
    most: float | None = None
    """The upper end of the vertical axis; None where the values decide."""
    has_pauses: bool = False
    """Whether a missing value is a pause, and no trouble."""

    @property
    def is_empty(self) -> bool:
        return not any(np.isfinite(line.y).any() for line in self.series)


@dataclass(frozen=True)
class BarRow:
    label: str
    value: float
    texts: tuple[str, ...]
    """One for each column."""
    meaning: str = ""


@dataclass(frozen=True)
class Bars:
    """Amounts side by side, each with its texts."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[BarRow, ...]


@dataclass(frozen=True)
class HeatMap:
    """Which class was taken for which, as counts."""

    key: str
    title: str
    description: str
    names: tuple[str, ...]
    counts: NDArray[np.int64]
    """A row for each class, a column for each answer."""

    @property
    def shares(self) -> Floats:
        """Each count as a share of its row."""
        return np.asarray(self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1))


@dataclass(frozen=True)
class TimeSpan:
    """One attempt on the time line."""

    label: str
    begin: float
    """In seconds since 1970."""
    end: float
    redone_share: float
    is_whole: bool
    """Whether it ended as it should."""


@dataclass(frozen=True)
class TimeLine:
    key: str
    title: str
    description: str
    spans: tuple[TimeSpan, ...]


@dataclass
class AxisValues:
    """Where a position of a run is on each axis."""

    samples: int
    positions: Floats
    seconds: Floats
    dollar_positions: Floats = field(default_factory=lambda: np.empty(0))
    dollars: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def axes(self) -> tuple[PageAxis, ...]:
        first = PageAxis(EPOCHS, "Epochs" if self.samples else "Samples")
        money = (PageAxis(DOLLARS, "US dollars"),) if len(self.dollars) else ()
        return (first, PageAxis(HOURS, f"{self.unit[1]} of all attempts"), *money)

    @property
    def unit(self) -> tuple[float, str]:
        """The unit of the axis of time."""
        return time_unit(float(self.seconds[-1]) if len(self.seconds) else 0.0)

    def of(self, positions: Floats) -> dict[str, Floats]:
        """The places of some positions, by the key of the axis."""
        places = {EPOCHS: positions / self.samples if self.samples else positions}
        places[HOURS] = positions * 0.0
        if len(self.positions):
            places[HOURS] = np.interp(positions, self.positions, self.seconds / self.unit[0])
        if len(self.dollars):
            places[DOLLARS] = np.interp(positions, self.dollar_positions, self.dollars)
        return places


def axis_values(facts: RunFacts) -> AxisValues:
    points, cost = facts.history.points, facts.cost
    if not points:
        return AxisValues(facts.samples, np.empty(0), np.empty(0))
    before_s = max(points[0].seconds - sum(points[0].parts.values()), 0.0)
    positions = np.array([0, *(point.position for point in points)], float)
    seconds = np.array([before_s, *(point.seconds for point in points)])
    values = AxisValues(facts.samples, np.maximum.accumulate(positions), seconds)
    if facts.is_priced and cost.points and cost.total > 0:
        places = np.array([0, *(point.position for point in cost.points)], float)
        values.dollar_positions = np.maximum.accumulate(places)
        values.dollars = np.array([0, *(point.dollars for point in cost.points)], float)
    return values


def binned(column: Sequence[float | None], most: int = MOST_POINTS) -> Floats:
    """At most so many values: the means of neighbours that are finite; NaN where none is."""
    values = np.array([np.nan if value is None else value for value in column], float)
    if len(values) <= most:
        return values
    edges = np.linspace(0, len(values), most + 1).astype(np.int64)[:-1]
    finite = np.isfinite(values)
    sums = np.add.reduceat(np.where(finite, values, 0.0), edges)
    counts = np.add.reduceat(finite.astype(float), edges)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def loss_chart(facts: RunFacts, values: AxisValues) -> Chart:
    curve, evaluations = facts.history.sums.curve(MOST_POINTS), facts.history.evaluations
    own = [event for event in evaluations if "loss" in event]
    positions = np.array([event["position"] for event in own], float)
    losses = np.array([event["loss"] for event in own], float)
    lines = [
        ChartLine("training", values.of(curve.position), curve.loss),
        ChartLine("evaluation", values.of(positions), losses, has_marks=True),
    ]
    return Chart(
        key="loss",
        title="Loss",
        description="Training loss, the mean over all ranks under augmentation, and the loss of "
        "each evaluation.",
        y_label="loss",
        axes=values.axes,
        series=tuple(line for line in lines if len(line.y)),
        from_zero=False,
    )


def accuracy_chart(facts: RunFacts, values: AxisValues) -> Chart:
    curve, evaluations = facts.history.sums.curve(MOST_POINTS), facts.history.evaluations
    positions = np.array([event["position"] for event in evaluations], float)
    places = values.of(positions)
    shares = {
        name: np.array([event[name] / event["images"] for event in evaluations], float)
        for name in ("top1", "top5")
    }
    lines = [
        ChartLine("training top-1", values.of(curve.position), curve.top1),
        ChartLine("evaluation top-1", places, shares["top1"], has_marks=True),
    ]
    if len(facts.record["classes"]) > 5:
        lines.append(ChartLine("evaluation top-5", places, shares["top5"], has_marks=True))
    return Chart(
        key="accuracy",
        title="Accuracy",
        description="The share of right answers in training, under augmentation, and in each "
        "evaluation.",
        y_label="share of images",
        axes=values.axes,
        series=tuple(line for line in lines if len(line.y)),
        format=as_share,
        most=1.0,
    )


def point_chart(
    facts: RunFacts,
    values: AxisValues,
    texts: tuple[str, str, str, str],
    number: Callable[[TrainingPoint], float | None],
) -> Chart:
    """A chart of one number of each row of steps; `texts` are key, title, description and label."""
    points = facts.history.points
    positions = binned([float(point.position) for point in points])
    line = ChartLine(texts[3], values.of(positions), binned([number(point) for point in points]))
    series = (line,) if len(line.y) else ()
    return Chart(*texts, values.axes, series)


def rate_chart(facts: RunFacts, values: AxisValues) -> Chart:
    description = "The learning rate of each step."
    texts = ("rate", "Learning rate", description, "learning rate")
    return point_chart(facts, values, texts, lambda point: point.lr)


def speed_chart(facts: RunFacts, values: AxisValues) -> Chart:
    description = (
        "Images a second of all ranks while steps were made, without evaluations and saves."
    )
    texts = ("speed", "Images a second", description, "images a second")
    return point_chart(facts, values, texts, lambda point: point.images_per_s)


def curve_charts(facts: RunFacts) -> list[Chart]:
    """The curves of a run, without those that have no value. A loss that is nowhere finite is
    shown as that."""
    values = axis_values(facts)
    makers = (accuracy_chart, loss_chart, rate_chart, speed_chart)
    charts = [make(facts, values) for make in makers]
    return [c for c in charts if not c.is_empty or (c.key == "loss" and c.series)]


def part_bars(facts: RunFacts) -> Bars:
    """Where the time of a step goes, without what comes between steps."""
    ledger = facts.history.ledger
    steps = max(sum(point.count for point in facts.history.points), 1)
    rows = [
        BarRow(
            LABELS.get(part, part),
            ledger.parts[part],
            (seconds(ledger.parts[part] / steps), as_share(share)),
        )
        for part in PARTS
        if part not in APART
        and ledger.parts[part] > 0
        and (share := ledger.parts[part] / max(ledger.training_s, 1e-9)) >= 0.0005
    ]
    rows.sort(key=lambda row: -row.value)
    return Bars("parts", "Parts of a step", ("a step", "share"), tuple(rows))


Measured = tuple[str, str, str, Format, float | None, Callable[[Usage], float | None]]


def gpu_mean(name: str) -> Callable[[Usage], float | None]:
    """The mean of a number over the GPUs of a machine."""

    def mean(usage: Usage) -> float | None:
        values = [gpu[name] for gpu in usage.gpus.values() if name in gpu]
        return sum(values) / len(values) if values else None

    return mean


USAGE: tuple[Measured, ...] = (
    ("gpu", "GPU busy", "share of the time", as_share, 1.0, gpu_mean("busy")),
    ("gpu-memory", "GPU memory", "mean of the GPUs", as_bytes, None, gpu_mean("used_bytes")),
    ("cpu", "CPU cores in use, by anyone", "share of all", as_share, 1.0, lambda u: u.busy),
    ("memory", "Memory of a rank", "bytes", as_bytes, None, lambda u: u.memory_bytes),
    (
        "disk",
        "Bytes read from disks a second",
        "bytes a second",
        as_bytes,
        None,
        lambda u: u.read_s,
    ),
    (
        "sent",
        "Bytes sent over links a second",
        "bytes a second",
        as_bytes,
        None,
        lambda u: u.sent_s,
    ),
    (
        "received",
        "Bytes received over links a second",
        "bytes a second",
        as_bytes,
        None,
        lambda u: u.received_s,
    ),
)


def usage_charts(facts: RunFacts) -> list[Chart]:
    """What the machines did over time; only what was measured."""
    times = [usage.time for rows in facts.history.usage.values() for usage in rows]
    began = min(times, default=0.0)
    unit_s, unit = time_unit(max(times, default=0.0) - began)
    hosts = sorted(facts.history.usage)[:MOST_LINES]
    axes = (PageAxis(OWN, f"{unit} since the first measurement"),)
    charts = []
    for key, title, label, form, most, number in USAGE:
        lines = []
        for host in hosts:
            rows = with_pauses(facts.history.usage[host])
            places = binned([(u.time - began) / unit_s for u, _ in rows])
            values = binned([None if is_pause else number(u) for u, is_pause in rows])
            lines.append(ChartLine(printable(host)[:60] or "this machine", {OWN: places}, values))
        texts = (f"use-{key}", title, f"{title}, {label}, of each machine.", label)
        charts.append(Chart(*texts, axes, tuple(lines), format=form, most=most, has_pauses=True))
    return [chart for chart in charts if not chart.is_empty]


def with_pauses(rows: Sequence[Usage]) -> list[tuple[Usage, bool]]:
    """The measurements, with a pause before each that comes long after the one before."""
    result: list[tuple[Usage, bool]] = []
    for usage in rows:
        if result and usage.time - result[-1][0].time > PAUSE_S:
            result.append((usage, True))
        result.append((usage, False))
    return result
