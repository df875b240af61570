"""The parts of a screen: each turns a WatchedRun into lines of text of a given width.

Invariants: no line is wider than requested, also with characters that take two columns. Texts are
rich `Text` objects: markup is never interpreted. Colours are the terminal's own sixteen, which its
owner has chosen to suit the background; each is only an addition: without colours nothing is lost.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from stoker.run.listing import FAILED, FINISHED, KILLED, RUNNING, STOPPED
from stoker.show.watch.chart import Format, Frame, chart
from stoker.show.watch.screen_data import GONE, UNREADABLE, Series, WatchedRun

STATE_STYLES = {
    RUNNING: "bold green",
    FINISHED: "bold green",
    STOPPED: "bold magenta",
    **dict.fromkeys((FAILED, KILLED, GONE, UNREADABLE), "bold red"),
}
BAR = {
    "data wait": ("▒", "red"),
    "copy": ("=", "cyan"),
    "forward": ("█", "blue"),
    "backward": ("▓", "green"),
    "exchange": ("▞", "magenta"),
    "optimiser": ("░", "yellow"),
    "other": ("·", ""),
}
"""How each part of a step is drawn, with colours and without."""
LOSS, ACCURACY, RATE = "magenta", "green", "cyan"
LEAST_NAME = 16
"""Columns of the name of a run at least."""
LABEL = 12
"""Columns of a label, with the space after it."""
_CONSOLE = Console(file=io.StringIO(), width=1000)


@dataclass(frozen=True)
class Section:
    """Lines that belong together. `least` of them must be shown, where there is room at all."""

    lines: Sequence[Text]
    least: int = 1


def fit(line: Text, width: int) -> Text:
    """The line, cut or filled up to exactly so many columns."""
    line = line.copy()
    line.truncate(width, overflow="ellipsis", pad=True)
    return line


def wrap(text: Text | str, width: int) -> list[Text]:
    """The lines of a text, broken between words; a word that is too long is broken too."""
    text = Text(text) if isinstance(text, str) else text
    return list(text.wrap(_CONSOLE, max(width, 1), overflow="fold")) or [Text()]


def labelled(label: str, texts: Sequence[Text | str], width: int, least: int = 1) -> list[Section]:
    """A section: a label, and texts to the right of it. None where there is no text."""
    lines = [line for text in texts if len(text) for line in wrap(text, width - LABEL)]
    if not lines:
        return []
    first = Text(f"{label:<{LABEL}}", "bold")
    rows = [Text.assemble(" " * LABEL if n else first, line) for n, line in enumerate(lines)]
    return [Section(rows, least)]


def ends(left: Text, right: Text, width: int) -> Text:
    """Two texts at both ends of a line; the left one is cut where they do not fit."""
    room = max(width - cell_len(right.plain) - 2, 0)
    return Text.assemble(fit(left, room), "  ", right) if room else fit(right, width)


def header(run: WatchedRun, width: int) -> list[Text]:
    """The name and the state; then how far the run is, and when it ends; then the notice."""
    style = STATE_STYLES.get(run.state, "bold")
    state = Text(run.state_text[: width // 2], style)
    if run.attempt:
        state = Text.assemble(state, f"  {run.attempt}")
    about = f"  {run.about}" if run.about else ""
    room = width - cell_len(state.plain) - cell_len(about) - 2
    name = Text.assemble((last_part(run.name, max(room, LEAST_NAME)), "bold"), about)
    lines = [ends(name, state, width)]
    texts = [text for text in (run.epoch, run.step) if text]
    left, right = "  ".join(texts), run.eta
    if run.share is not None:
        room = min(width - cell_len(left) - cell_len(right) - 10, 60)
        left += f"  {gauge(run.share, room)}" if room >= 5 else f"  {run.share:.0%}"
    if left or right:
        lines.append(ends(Text(left), Text(right), width))
    if run.notice:
        lines += wrap(Text(run.notice, "bold red"), width)[:3]
    return lines


def last_part(path: str, room: int) -> str:
    """A path in so many columns: its end says more than its beginning."""
    if cell_len(path) <= room:
        return path
    while cell_len(path) > room - 1:
        path = path[max(len(path) - room, 1) :]
    return f"…{path}"


def gauge(share: float, room: int) -> str:
    """A bar with its percentage. Only the end is 100%."""
    percent = 100 if share >= 1 else min(int(share * 100), 99)
    full = int(share * room)
    return f"{'━' * full}{'╌' * (room - full)} {percent}%"


def loss_panel(run: WatchedRun, width: int, height: int, axis: str) -> list[Text]:
    frame = frame_for(run, (width, height), axis, LOSS)
    return curve_panel("training loss", run.loss, run.curves.loss, frame, axis)


def accuracy_panel(run: WatchedRun, width: int, height: int, axis: str) -> list[Text]:
    series = run.curves.accuracy
    frame = frame_for(run, (width, height), axis, ACCURACY)
    is_short = len(series.y) < width // 6
    words = "not evaluated yet"
    frame = replace(frame, y_text=percent_text, marks_points=is_short, empty=words)
    return curve_panel("top-1", run.accuracy, series, frame, axis)


def rate_panel(run: WatchedRun, width: int, height: int, axis: str) -> list[Text]:
    frame = frame_for(run, (width, height), axis, RATE)
    return curve_panel("learning rate", run.lr, run.curves.lr, frame, axis)


def percent_text(share: float) -> str:
    return f"{share * 100:.3g}%"


def curve_panel(title: str, value: str, series: Series, frame: Frame, axis: str) -> list[Text]:
    """A title with the latest value, above the chart of a curve; together as high as `frame`."""
    head = Text.assemble((title, f"bold {frame.style}"), f" {value}" if value else "")
    x, last, unit = series.x(axis), frame.x_range[1] if frame.x_range else 0.0, axis
    x_text: Format = whole_text if axis == "step" else short_text
    if axis == "time":
        scale, unit = time_unit(last)
        x, last = tuple(value / scale for value in x), last / scale
    lower = replace(frame, height=frame.height - 1, x_text=x_text, x_range=(0.0, last))
    return [ends(head, Text(unit, "dim"), frame.width), *chart(x, series.y, lower)]


def frame_for(run: WatchedRun, size: tuple[int, int], axis: str, style: str) -> Frame:
    """A frame for a curve of a run. All its charts have the same x-axis: from 0 to now."""
    curves = (run.curves.loss, run.curves.accuracy, run.curves.lr)
    last = max((x for curve in curves for x in curve.x(axis)[-1:]), default=0.0)
    return Frame(*size, style, x_range=(0.0, last))


def whole_text(value: float) -> str:
    return f"{value:,.0f}"


def short_text(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def time_unit(most_s: float) -> tuple[float, str]:
    """The seconds of the unit in which a time axis is labelled, and its name."""
    for unit_s, name in ((3600.0, "hours"), (60.0, "minutes")):
        if most_s >= 2 * unit_s:
            return unit_s, name
    return 1.0, "seconds"


def step_sections(run: WatchedRun, width: int) -> list[Section]:
    """The parts of a step as one bar, with a legend."""
    if not run.parts:
        return []
    room = width - LABEL
    bar, legend, end = Text(), list[Text](), 0
    total = 0.0
    for name, share in run.parts:
        glyph, style = BAR[name]
        total += share
        begin, end = end, min(round(total * room), room)
        bar.append(glyph * (end - begin), style)
        if share >= 0.0005:
            percent = f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"
            legend.append(Text.assemble((glyph, style), f" {name} {percent}"))
    texts = packed(legend, room)
    if run.between:
        texts.append(Text(f"between steps: {run.between}", "dim"))
    return labelled("step", [bar, *texts], width, least=1 + len(packed(legend, room)))


def packed(items: Sequence[Text], width: int) -> list[Text]:
    """Items one after the other, on as many lines as they need."""
    lines: list[Text] = []
    for item in items:
        if lines and cell_len(lines[-1].plain) + 2 + cell_len(item.plain) <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", item)
        else:
            lines.append(item)
    return lines


def speed_sections(run: WatchedRun, width: int) -> list[Section]:
    return labelled("speed", [run.speed], width)


def rank_sections(run: WatchedRun, width: int) -> list[Section]:
    return labelled("ranks", [run.ranks], width, least=2)


def machine_sections(run: WatchedRun, width: int) -> list[Section]:
    room = width - LABEL
    texts = [line for groups in run.machines for line in packed(list(map(Text, groups)), room)]
    return labelled("machine", texts, width, least=2)


def verdict_sections(run: WatchedRun, width: int) -> list[Section]:
    """The verdict; without one, that there is none yet."""
    if not run.verdict:
        text = "none yet: too few steps" if run.step else ""
        return labelled("verdict", [Text(text, "dim")], width)
    at = Text(run.verdict_at, "dim")
    return labelled("verdict", [*run.verdict, at], width, least=2)


def money_sections(run: WatchedRun, width: int) -> list[Section]:
    return labelled("money", [run.money], width)


def checkpoint_sections(run: WatchedRun, width: int) -> list[Section]:
    text = Text(run.checkpoint, "red" if run.checkpoint.startswith("none") else "")
    return labelled("checkpoint", [text], width)


def attempt_sections(run: WatchedRun, width: int) -> list[Section]:
    return labelled("attempts", run.attempts, width)


def incident_sections(run: WatchedRun, width: int) -> list[Section]:
    return labelled("incidents", [Text(text, "red") for text in run.incidents], width)


def rate_sections(run: WatchedRun, width: int, axis: str) -> list[Section]:
    """The learning rate: a line where there is little room, else a small chart."""
    if not run.lr:
        return []
    return [Section(rate_panel(run, width, 8, axis), least=8)]
