"""The whole screen: panels put together to the size of the terminal.

Invariants: a screen has at most the rows and exactly the columns that it is given. What is most
important comes first: a low screen loses the last sections, never the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from stoker.show.watch import panels
from stoker.show.watch.panels import Section, ends, fit, header, wrap
from stoker.show.watch.screen_data import WatchedRun
from stoker.text import sparkline

WIDE = 120
"""Columns from which the sections stand in two columns."""
LEAST_CHART, MOST_CHART = 6, 24
"""Rows of a chart with its title and axis."""
NATURAL_CHART = 12
CARD_COLUMNS = 50
"""Columns of a card at least, where several stand side by side."""
LEAST_CARD, VERDICT_ROWS = 4, 2
GAP = 2

KEYS = {
    "q": "quit",
    "x": "x-axis",
    "tab": "next",
    "enter": "open",
    "esc": "back",
    "?": "help",
}
HELP = (
    ("q", "quit; the run goes on"),
    ("x", "what the curves are over: steps, epochs or time"),
    ("tab, arrows", "choose the next or the previous run"),
    ("enter, 1 to 9", "open one of several runs"),
    ("esc", "back to all runs"),
    ("?", "show or leave this help"),
)
NOTES = (
    "Everything is read from the files of the run, so it works on any machine that sees them, "
    "and the run does not notice.",
    "speed, step, ranks and machine are means over the last minute of training.",
    "ranks: the seconds of a step without waiting for other ranks.",
    "checkpoint: the last one that is complete; what came later is lost in a kill.",
    "money: what the run has cost so far; to the end, at the speed of the last ten minutes.",
)

Panel = Callable[[WatchedRun, int], list[Section]]
LEFT: tuple[Panel, ...] = (
    panels.speed_sections,
    panels.step_sections,
    panels.rank_sections,
    panels.machine_sections,
)
RIGHT: tuple[Panel, ...] = (
    panels.verdict_sections,
    panels.money_sections,
    panels.checkpoint_sections,
    panels.attempt_sections,
    panels.incident_sections,
)
NARROW: tuple[Panel, ...] = (
    panels.speed_sections,
    panels.step_sections,
    panels.verdict_sections,
    panels.money_sections,
    panels.checkpoint_sections,
    panels.machine_sections,
    panels.incident_sections,
    panels.rank_sections,
    panels.attempt_sections,
)
"""In the order of their importance."""


def full_screen(run: WatchedRun, width: int, height: int | None, axis: str) -> list[Text]:
    """One run. Without a height, everything is shown."""
    head = header(run, width)
    if not run.step:
        rest = [*panels.attempt_sections(run, width), *panels.incident_sections(run, width)]
        lines = [*head, Text(), *placed(rest, 100)] if rest else head
        return [fit(line, width) for line in lines[:height]]
    if width >= WIDE:
        return wide(run, head, width, height, axis)
    sections = [section for panel in NARROW for section in panel(run, width)]
    if height is None:
        body = [*charts(run, width, NATURAL_CHART, axis), *placed(sections, 1000)]
        body += [line for s in panels.rate_sections(run, width, axis) for line in s.lines]
        return [fit(line, width) for line in [*head, *body]]
    least = max(height * 2 // 5, LEAST_CHART)
    lines = placed(sections, max(height - len(head) - least, 0))
    chart_rows = min(height - len(head) - len(lines), MOST_CHART)
    lines = [*head, *charts(run, width, chart_rows, axis), *lines]
    spare = height - len(lines)
    for section in panels.rate_sections(run, width, axis):
        lines += section.lines if len(section.lines) <= spare else ()
    return [fit(line, width) for line in lines[:height]]


def wide(
    run: WatchedRun, head: list[Text], width: int, height: int | None, axis: str
) -> list[Text]:
    """Charts above two columns of sections."""
    column = (width - GAP) // 2
    left = [section for panel in LEFT for section in panel(run, column)]
    right = [section for panel in RIGHT for section in panel(run, column)]
    if height is None:
        chart_rows, room = NATURAL_CHART, 1000
    else:
        wanted = max(rows_of(left) + 9, rows_of(right))
        spare = height - len(head) - 2 - wanted
        chart_rows = min(max(spare, height // 3, LEAST_CHART), MOST_CHART)
        room = max(height - len(head) - chart_rows - 2, 0)
    left_lines, right_lines = placed(left, room, gap=True), placed(right, room, gap=True)
    for section in panels.rate_sections(run, column, axis):
        fits_left = len(left_lines) <= len(right_lines)
        shorter = left_lines if fits_left else right_lines
        if len(shorter) + 1 + len(section.lines) <= room:
            shorter += [Text(), *section.lines]
    body = side_by_side(left_lines, right_lines, column)
    lines = [*head, Text(), *charts(run, width, chart_rows, axis), Text(), *body]
    return [fit(line, width) for line in lines[:height]]


def rows_of(sections: Sequence[Section]) -> int:
    return sum(len(section.lines) + 1 for section in sections)


def charts(run: WatchedRun, width: int, height: int, axis: str) -> list[Text]:
    """Loss and accuracy, side by side."""
    column = (width - GAP) // 2
    return side_by_side(
        panels.loss_panel(run, column, height, axis),
        panels.accuracy_panel(run, column, height, axis),
        column,
    )


def side_by_side(left: Sequence[Text], right: Sequence[Text], column: int) -> list[Text]:
    rows = max(len(left), len(right))
    pairs = zip(padded(left, rows), padded(right, rows), strict=True)
    return [Text.assemble(fit(a, column), " " * GAP, fit(b, column)) for a, b in pairs]


def padded(lines: Sequence[Text], rows: int) -> list[Text]:
    return [*lines, *(Text() for _ in range(rows - len(lines)))]


def placed(sections: Sequence[Section], room: int, gap: bool = False) -> list[Text]:
    """The lines of sections in so many rows. First each gets its least rows, in their order; then
    the room that is left. With a gap, an empty row between them where all have room."""
    rows = [0] * len(sections)
    spare = room
    for least in (True, False):
        for number, section in enumerate(sections):
            wanted = min(section.least, len(section.lines)) if least else len(section.lines)
            more = min(max(wanted - rows[number], 0), spare)
            rows[number], spare = rows[number] + more, spare - more
    blocks = [shortened(s.lines, count) for s, count in zip(sections, rows, strict=True) if count]
    between = [Text()] if gap and spare >= len(blocks) - 1 else []
    return [line for n, block in enumerate(blocks) for line in [*(between if n else ()), *block]]


def shortened(lines: Sequence[Text], count: int) -> list[Text]:
    """The first lines; an ellipsis ends them where some are left out."""
    if count >= len(lines):
        return list(lines)
    last = lines[count - 1].copy()
    last.rstrip()
    return [*lines[: count - 1], Text.assemble(last, " …")]


def card_screen(
    runs: Sequence[WatchedRun], selected: int, width: int, height: int | None, axis: str
) -> list[Text]:
    """Several runs, each on a card, in columns where the screen is wide. Where there is no room for
    all, those around the selected one."""
    columns = min(max(width // CARD_COLUMNS, 1), len(runs))
    column = (width - GAP * (columns - 1)) // columns
    rows = -(-len(runs) // columns)
    if height is None:
        card_rows, visible = NATURAL_CHART, rows
    else:
        visible = max(min(rows, (height + 1) // (LEAST_CARD + 1)), 1)
        card_rows = max((height + 1) // visible - 1, 1)
    first = min(max(selected // columns - visible // 2, 0), rows - visible)
    lines: list[Text] = []
    for row in range(first, first + visible):
        numbers = range(row * columns, min((row + 1) * columns, len(runs)))
        cards = [card(runs[n], n, n == selected, (column, card_rows), axis) for n in numbers]
        height_of_row = max(map(len, cards))
        lines += [Text()] if row > first else []
        for parts in zip(*(padded(one, height_of_row) for one in cards), strict=True):
            lines.append(Text(" " * GAP).join([fit(part, column) for part in parts]))
    return [fit(line, width) for line in lines[:height]]


def card(
    run: WatchedRun, number: int, is_selected: bool, size: tuple[int, int], axis: str
) -> list[Text]:
    """One of several runs: state, curve, speed, accuracy, end, dollars and verdict."""
    width, height = size
    style = panels.STATE_STYLES.get(run.state, "bold")
    mark = "▶" if is_selected else " "
    room = max(width - len(run.state) - 6, panels.LEAST_NAME)
    name = Text(
        f"{mark}{number + 1} {panels.last_part(run.name, room)}",
        "bold reverse" if is_selected else "bold",
    )
    head = [ends(name, Text(run.state, style), width)]
    if run.notice:
        head += wrap(Text(run.notice, "bold red"), width)[:2]
    progress = "  ".join(filter(None, (run.epoch, run.eta)))
    facts = [f"top-1 {run.accuracy}" if run.accuracy else "", run.rate, run.dollars]
    loss = f"loss {run.loss}" if run.loss else ""
    figures = "  ".join(filter(None, facts))
    verdict = list(wrap(run.verdict[0], width)) if run.verdict else []
    curve = [value for value in run.curves.loss.y if value == value and abs(value) != float("inf")]
    chart_rows = height - len(head) - 3 - VERDICT_ROWS
    if not run.step:
        lines = [*head, Text(run.about)]
    elif chart_rows >= LEAST_CHART:
        body = [Text(run.about), Text(progress), Text(figures)]
        chart = card_charts(run, width, chart_rows, axis)
        lines = [*head, *body, *chart, *shortened(verdict, min(len(verdict), VERDICT_ROWS))]
    else:
        line = f"{sparkline(curve, 24)} {loss}" if curve else loss
        lines = [*head, ends(Text(progress), Text(line), width), Text(figures)]
        lines += shortened(verdict, min(len(verdict), max(height - len(lines), 0)))
    return lines[:height]


def card_charts(run: WatchedRun, width: int, rows: int, axis: str) -> list[Text]:
    """The loss, and below it the accuracy where there is room for both."""
    if rows < 2 * LEAST_CHART + 2:
        return panels.loss_panel(run, width, rows, axis)
    half = min(rows // 2, MOST_CHART)
    lower = panels.accuracy_panel(run, width, half, axis)
    return [*panels.loss_panel(run, width, half, axis), *lower]


def footer(width: int, axis: str, several: bool, note: str = "") -> Text:
    """The keys, and what is left out."""
    keys = {key: word for key, word in KEYS.items() if several or key in ("q", "x", "?")}
    keys["x"] = f"over {axis}"
    line = Text("  ").join(
        Text.assemble((key, "bold reverse"), f" {word}") for key, word in keys.items()
    )
    return ends(line, Text(note, "dim"), width)


def help_screen(width: int, height: int) -> list[Text]:
    lines = [Text("stoker watch", "bold"), Text()]
    lines += [Text.assemble((f"{key:<16}", "bold"), words) for key, words in HELP]
    for note in NOTES:
        lines += [Text(), *wrap(note, width)]
    return [fit(line, width) for line in lines[:height]]
