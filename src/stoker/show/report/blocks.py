"""Charts made of blocks: the attempts on a time line, the confusion matrix, and stacked bars.

Invariants: times are those of the wall clock, so that pauses are visible. A heat map is a path for
each of a few shades, so that a hundred classes take little. All have a title and a description, and
a table beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.show.report.charts import HeatMap, TimeLine, TimeSpan, as_share, time_unit
from stoker.show.report.elements import Html, PageTable, folded, table_html, tag
from stoker.show.report.facts import RunFacts
from stoker.show.report.svg import WIDTH, PlotScale, number_text, ticks, widened
from stoker.text import clock, plural, printable

MOST_SPANS = 30
SPAN_HEIGHT, SPAN_BAR = 46, 14
MOST_HEAT_CLASSES = 100
LABELLED, NUMBERED = 24, 12
"""Classes up to which a heat map has names, and numbers in its cells."""
LEVELS = 12
"""Shades of a heat map."""
LONGEST_NAME = 16
STACK_HEIGHT, STACK_BAR, STACK_TOP = 52, 20, 26
LABELLED_SHARE = 0.07
"""The part of a stacked bar from which on its share is written into it."""


def time_line(facts: RunFacts) -> TimeLine:
    """The attempts by the wall clock."""
    spans = []
    for number, attempt in sorted(facts.history.attempts.items()):
        if attempt.began is None or attempt.last is None:
            continue
        is_newest = number == facts.history.newest
        ending = ending_of(facts, number)
        redone = attempt.redone / attempt.steps if attempt.steps else 0.0
        repeated = f", {attempt.redone:,} repeated later" if attempt.redone else ""
        label = f"Attempt {number}: {ending}, {plural(attempt.steps, 'step')}{repeated}"
        is_whole = bool(attempt.end) or (is_newest and facts.is_running)
        spans.append(TimeSpan(label, attempt.began, attempt.last, redone, is_whole))
    return TimeLine(
        "attempts",
        "Attempts by the wall clock",
        "Each attempt from its first event to its last. The dotted end of a bar is the share of "
        "its steps that a later attempt repeated. " + ". ".join(span.label for span in spans),
        tuple(spans),
    )


def ending_of(facts: RunFacts, number: int) -> str:
    """How an attempt ended, in a word or two."""
    attempt = facts.history.attempts[number]
    if attempt.end:
        return printable(attempt.end["outcome"][:40])
    return "running" if number == facts.history.newest and facts.is_running else "killed"


def timeline_figure(line: TimeLine) -> Html:
    """Attempts one below the other, by the wall clock."""
    spans = line.spans[-MOST_SPANS:]
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    unit_s, unit = time_unit(end - begin)
    across = PlotScale(*widened(0.0, (end - begin) / unit_s), 4, WIDTH - 10)
    height = SPAN_HEIGHT * len(spans) + 52
    floor = SPAN_HEIGHT * len(spans) + 4
    parts = [
        part
        for place, span in enumerate(spans)
        for part in drawn_span(span, place, begin, unit_s, across)
    ]
    grid = []
    for value in ticks(across.low, across.high, 6):
        x = f"{across.at(value):.1f}"
        anchor = "start" if value == 0 else "end" if across.at(value) > WIDTH - 40 else "middle"
        grid.append(tag("path", d=f"M{x} 4V{floor + 5}", class_="grid"))
        grid.append(tag("text", number_text(value), x=x, y=floor + 22, text_anchor=anchor))
    label = tag(
        "text",
        f"{unit} since the first event",
        x=WIDTH // 2,
        y=height - 6,
        text_anchor="middle",
        class_="soft",
    )
    return tag(
        "svg",
        tag("title", line.title, id="attempts-title"),
        tag("desc", line.description, id="attempts-desc"),
        *grid,
        *parts,
        label,
        class_="plot timeline",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby="attempts-title attempts-desc",
    )


def drawn_span(
    span: TimeSpan, place: int, begin: float, unit_s: float, across: PlotScale
) -> list[Html]:
    """The words and the bar of an attempt. The part that was repeated is dotted."""
    left, right = across.at((span.begin - begin) / unit_s), across.at((span.end - begin) / unit_s)
    right = max(right, left + 3)
    middle = right - (right - left) * span.redone_share
    top = 4 + place * SPAN_HEIGHT
    parts = [
        tag("text", span.label, x=4, y=top + 18),
        tag(
            "rect",
            x=f"{left:.1f}",
            y=top + 24,
            width=f"{max(middle - left, 0):.1f}",
            height=SPAN_BAR,
            class_="span" if span.is_whole else "span killed",
        ),
    ]
    if span.redone_share:
        line = f"M{middle:.1f} {top + 24 + SPAN_BAR / 2}H{right:.1f}"
        parts.append(tag("path", d=line, class_="repeated"))
    return parts


def heat_map(facts: RunFacts) -> HeatMap | None:
    """The confusion matrix of the last evaluation; None where there is none, or it is too large."""
    if facts.evaluation is None or len(facts.evaluation.report.classes) > MOST_HEAT_CLASSES:
        return None
    report = facts.evaluation.report
    counts = np.zeros((len(report.classes), len(report.classes)), np.int64)
    for true, predicted, count in report.confusions:
        counts[true, predicted] = count
    counts[np.diag_indices(len(counts))] = [row[1] for row in report.per_class]
    return HeatMap(
        "confusion",
        "Confusion matrix",
        "A row for each class, a column for each answer of the model. The stronger the colour of a "
        "cell, the larger the share of the row's images. The diagonal is what it gets right.",
        tuple(report.classes),
        counts,
    )


def heat_figure(heat: HeatMap) -> Html:
    """The heat map; its table is that of the confusions, which follows it on the page."""
    count = len(heat.names)
    left = 150 if count <= LABELLED else 40
    side = (WIDTH - left - 4) / count
    top, height = 34, 34 + side * count + 6
    labels = heat_labels(heat.names, left, top, side)
    counts = ";".join(f"{t},{p},{heat.counts[t, p]}" for t, p in np.argwhere(heat.counts))
    picture = tag(
        "svg",
        tag("title", heat.title, id="heat-title"),
        tag("desc", heat.description, id="heat-desc"),
        tag("text", "answer of the model", x=left, y=12, class_="soft"),
        tag("text", "class", x=left - 8, y=12, text_anchor="end", class_="soft"),
        *labels,
        *heat_cells(heat, left, top, side),
        tag("path", d=frame(left, top, side * count), class_="frame"),
        class_="heat",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_labelledby="heat-title heat-desc",
        data_box=f"{left} {top} {side!r} {count}",
        data_counts=Html(counts),
        data_names="|".join(short_name(name, 60) for name in heat.names),
    )
    box = tag(
        "div",
        picture,
        class_="wide plots",
        tabindex="0",
        role="group",
        aria_label=f"{heat.title}: the table below it has the largest numbers",
    )
    readout = tag("output", class_="readout", aria_live="polite")
    heading = tag("h3", heat.title, id="chart-confusion")
    return tag("figure", heading, box, readout, heat_table(heat), class_="chart")


def heat_table(heat: HeatMap) -> Html:
    """The classes by their numbers in the heat map, with the largest part of each row."""
    rows = []
    for number, name in enumerate(heat.names):
        row = heat.counts[number]
        right, most = int(row[number]), int(np.argmax(row))
        answer = f"{most + 1} ({row[most]:,})" if row[most] else ""
        rows.append((str(number + 1), short_name(name, 60), f"{right:,}", answer))
    columns = ("number", "class", "right", "most frequent answer")
    table = PageTable("The classes by number", columns, rows, frozenset((0, 2)))
    return folded("The classes by number", table_html(table))


def frame(left: float, top: float, side: float) -> str:
    return f"M{left} {top}h{side:.1f}v{side:.1f}h-{side:.1f}z"


def short_name(name: str, most: int = LONGEST_NAME) -> str:
    """A name of a class in one printable line. Of a long one the middle is left out: names of a
    set often begin alike, or end alike."""
    text = printable(name).replace("|", "¦")
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"


def heat_labels(names: Sequence[str], left: float, top: float, side: float) -> list[Html]:
    """Numbers of the columns, and names or numbers of the rows."""
    every = 1 if len(names) <= LABELLED else 10
    letters = min(13.0, max(side * 0.7, 9.0))
    labels = []
    for number, name in enumerate(names):
        if (number + 1) % every and number:
            continue
        middle = f"{side * (number + 0.5):.1f}"
        text = f"{short_name(name)} {number + 1}" if every == 1 else str(number + 1)
        options = {"font-size": f"{letters:.1f}", "dy": "0.35em"}
        labels.append(
            tag(
                "text",
                text,
                x=left - 6,
                y=top + float(middle),
                text_anchor="end",
                class_="cell",
                **options,
            )
        )
        labels.append(
            tag(
                "text",
                str(number + 1),
                x=left + float(middle),
                y=top - 9,
                text_anchor="middle",
                class_="cell",
                **options,
            )
        )
    return labels


def heat_cells(heat: HeatMap, left: float, top: float, side: float) -> list[Html]:
    """One path for each shade, and the numbers where there is room for them."""
    shares, is_numbered = heat.shares, len(heat.names) <= NUMBERED
    levels = np.ceil(shares * LEVELS).astype(int)
    parts = []
    for level in range(1, LEVELS + 1):
        cells = np.argwhere(levels == level)
        if len(cells):
            path = "".join(f"M{p} {t}h1v1h-1z" for t, p in cells)
            parts.append(tag("path", d=path, fill_opacity=f"{0.06 + 0.94 * level / LEVELS:.2f}"))
    place = f"translate({left} {top}) scale({side:.4f})"
    shades = [
        tag("g", *parts, class_="shades numbered" if is_numbered else "shades", transform=place)
    ]
    if not is_numbered:
        return shades
    numbers = []
    for true, predicted in np.argwhere(heat.counts):
        x, y = left + side * (predicted + 0.5), top + side * (true + 0.5)
        numbers.append(
            tag(
                "text",
                f"{heat.counts[true, predicted]:,}",
                x=f"{x:.1f}",
                y=f"{y:.1f}",
                dy="0.35em",
                text_anchor="middle",
                class_="cell",
            )
        )
    return [*shades, *numbers]


def stack_figure(
    key: str, title: str, rows: Sequence[tuple[str, Mapping[str, float]]], labels: Mapping[str, str]
) -> Html:
    """Seconds by category as a bar for each name, cut into shares, with a table of the same. The
    categories are the keys of `labels`, at most eight; each name has some seconds."""
    used = [name for name in labels if any(row[name] > 0 for _, row in rows)]
    kinds = {name: f"f{place}" for place, name in enumerate(labels)}
    totals = [sum(row.values()) for _, row in rows]
    cells = [
        (name, *(as_share(row[each] / total) for each in used), clock(total))
        for (name, row), total in zip(rows, totals, strict=True)
    ]
    columns = ("name", *(labels[name] for name in used), "time")
    table = PageTable(f"{title}: shares", columns, cells, frozenset(range(1, len(columns))))
    options = {"viewBox": "0 0 34 12", "aria-hidden": "true"}
    pieces = {name: tag("rect", width=34, height=12, class_=kinds[name]) for name in used}
    items = [tag("li", tag("svg", pieces[name], **options), labels[name]) for name in used]
    bars = [
        part
        for place, (name, row) in enumerate(rows)
        for part in stack_bar(place, name, {kinds[each]: row[each] for each in used})
    ]
    described = "A bar for each name, cut by what the time was for; the table has the numbers."
    picture = tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag("desc", described, id=f"{key}-desc"),
        *bars,
        class_="plot stacks",
        viewBox=f"0 0 {WIDTH} {len(rows) * STACK_HEIGHT}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )
    heading, key_list = tag("h3", title, id=f"chart-{key}"), tag("ul", *items, class_="legend")
    numbers = folded("The numbers", table_html(table))
    return tag("figure", heading, key_list, picture, numbers, class_="chart broad")


def stack_bar(place: int, name: str, seconds: Mapping[str, float]) -> list[Html]:
    """One bar, with its name and its time above it; `seconds` by the class of a part."""
    total, top, left = sum(seconds.values()), place * STACK_HEIGHT + STACK_TOP, 0.0
    parts = [tag("text", f"{short_name(name, 40)}, {clock(total)}", x=0, y=top - 7)]
    for kind, part_s in seconds.items():
        share, width = part_s / total, WIDTH * part_s / total
        if width < 0.05:
            continue
        box = {"x": f"{left:.1f}", "y": top, "width": f"{width:.1f}"}
        parts.append(tag("rect", height=STACK_BAR, class_=kind, **box))
        if share >= LABELLED_SHARE:
            middle = {"x": f"{left + width / 2:.1f}", "y": top + 14, "text_anchor": "middle"}
            parts.append(tag("text", f"{share:.0%}", class_="inside", **middle))
        left += width
    return parts
