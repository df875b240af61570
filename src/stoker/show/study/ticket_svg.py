"""Accuracy against sparsity as a picture: an SVG that needs nothing else.

Invariants: no script, no font, no address of another file. Every text is escaped. The numbers stand
in the picture's description too, for those who do not see it. It follows the reader's light or dark
setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from stoker.intervals import Mean
from stoker.study.sweep import ENOUGH
from stoker.study.tickets.plan import percent
from stoker.study.tickets.results import TicketResults
from stoker.text import printable

WIDTH, LEFT, RIGHT, TOP, FLOOR = 720, 60, 20, 48, 308
"""The picture's width, and the sides of the plot; the legend is below its floor."""
LEGEND, LINE = FLOOR + 44, 18
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours that people with any colour vision can tell apart (Okabe and Ito)."""
STYLE = (
    "text{fill:#222;font:13px sans-serif}.paper{fill:#fff}.grid{stroke:#ddd}.dense{stroke:#222}"
    ".other{stroke:#777;fill:#777}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.paper{fill:#15181c}.grid{stroke:#333}"
    ".dense{stroke:#ddd}.other{stroke:#999;fill:#999}}"
)
Points = list[tuple[int, Mean]]
"""Number of a level, and its accuracy."""


def ticket_svg(results: TicketResults, title: str) -> str:
    """The picture. Empty where no level has a result."""
    curves = curves_of(results)
    means = [mean for _, _, _, points in curves for _, mean in points]
    if not means:
        return ""
    everything = [*means, *([results.dense] if results.dense else [])]
    scale = Scale(everything, len(results.design.keeps))
    title = escape(printable(title))
    height = LEGEND + LINE * ((len(curves) + 1) // 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title words">',
        f'<title id="title">{title}</title>',
        f'<desc id="words">{escape(description(results))}</desc>',
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        f'<text x="{LEFT}" y="24">{title}: top-1 by the share of weights kept</text>',
        *axes(results, scale),
        *(line for number, curve in enumerate(curves) for line in drawn(curve, scale, number)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def interval(mean: Mean) -> tuple[float, float]:
    """The ends of what is drawn of a mean: too few runs have no interval."""
    return (mean.low, mean.high) if mean.count >= ENOUGH else (mean.mean, mean.mean)


class Scale:
    """Where a level and an accuracy are in the picture."""

    def __init__(self, means: Sequence[Mean], levels: int) -> None:
        ends = [end for mean in means for end in interval(mean)]
        low, high = max(0.0, min(ends)), min(1.0, max(ends))
        self.step = next(
            s for s in (0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / s <= 6 or s == 0.2
        )
        self.low = int(low / self.step) * self.step
        self.high = -int(-high / self.step // 1) * self.step
        self.levels = levels

    def x(self, level: int) -> float:
        """Levels stand at equal distances."""
        return LEFT + (level + 0.5) * (WIDTH - LEFT - RIGHT) / self.levels

    def y(self, share: float) -> float:
        share = min(max(share, self.low), self.high)
        return TOP + (FLOOR - TOP) * (self.high - share) / ((self.high - self.low) or 1.0)

    def ticks(self) -> list[float]:
        count = round((self.high - self.low) / self.step)
        return [self.low + number * self.step for number in range(count + 1)]


def curves_of(results: TicketResults) -> list[tuple[str, str, str, Points]]:
    """Name, colour, dashes and points of each curve."""
    curves = []
    for number, rewind in enumerate(results.design.rewinds):
        levels = [level for level in results.levels if level.rewind == rewind]
        hue = HUES[number % len(HUES)]
        tickets = [(n, level.ticket) for n, level in enumerate(levels) if level.ticket]
        random = [(n, level.random) for n, level in enumerate(levels) if level.random]
        curves.append((f"ticket from epoch {rewind:g}", hue, "", tickets))
        layers = [(n, level.by_layer) for n, level in enumerate(levels) if level.by_layer]
        curves.append((f"random mask from epoch {rewind:g}", hue, "6 4", random))
        curves.append((f"by layer from epoch {rewind:g}", hue, "12 3 3 3", layers))
    first = [level for level in results.levels if level.rewind == results.design.rewinds[0]]
    reinit = [(n, level.reinit) for n, level in enumerate(first) if level.reinit]
    curves.append(("re-initialised", "", "2 4", reinit))
    return [curve for curve in curves if curve[3]]


def axes(results: TicketResults, scale: Scale) -> Iterator[str]:
    for share in scale.ticks():
        y = scale.y(share)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>'
    for number, keep in enumerate(results.design.keeps):
        y = FLOOR + 20
        yield f'<text x="{scale.x(number):.1f}" y="{y}" text-anchor="middle">{percent(keep)}</text>'
    if results.dense:
        y = scale.y(results.dense.mean)
        yield f'<path class="dense" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke-dasharray="1 3"/>'
        yield f'<text x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end">dense</text>'


def drawn(curve: tuple[str, str, str, Points], scale: Scale, number: int) -> Iterator[str]:
    """A curve with its intervals, and its line of the legend."""
    name, hue, dashes, points = curve
    paint = f'stroke="{hue}" fill="{hue}"' if hue else 'class="other"'
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    shift = 3.0 * (number - 2)  # so that intervals do not cover each other
    places = [(scale.x(level) + shift, mean) for level, mean in points]
    line = " ".join(f"{x:.1f},{scale.y(mean.mean):.1f}" for x, mean in places)
    yield f'<g {paint} stroke-width="2"><polyline points="{line}" style="fill:none"{dash}/>'
    for x, mean in places:
        yield f'<circle cx="{x:.1f}" cy="{scale.y(mean.mean):.1f}" r="2.5"/>'
        low, high = map(scale.y, interval(mean))
        if low != high:
            yield f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke-width="1"/>'
    x, y = LEFT + 330 * (number % 2), LEGEND + LINE * (number // 2)
    yield f'<path d="M{x} {y - 4}h28"{dash}/></g><text x="{x + 36}" y="{y}">{name}</text>'


def description(results: TicketResults) -> str:
    """The numbers of the picture in words."""
    dense = f"Dense: {100 * results.dense.mean:.1f} %. " if results.dense else ""
    parts = [
        f"{percent(level.keep)} kept, from epoch {level.rewind:g}: "
        + ", ".join(
            f"{name} {100 * mean.mean:.1f} %"
            for name, mean in (
                ("ticket", level.ticket),
                ("random mask", level.random),
                ("re-initialised", level.reinit),
            )
            if mean
        )
        for level in results.levels
        if level.ticket
    ]
    return f"{dense}{'. '.join(parts)}."
