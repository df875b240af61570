"""`explain` of other people's logs: at most eight lines a run, then what such logs cannot tell."""

from __future__ import annotations

from stoker.measure.logs.runs import MOST_RUNS, Block, Log
from stoker.measure.logs.verdict import few_stretches_wait, hides_wait, judge
from stoker.measure.verdict import Verdict
from stoker.text import plural

CANNOT_TELL = (
    "not in such a log: reading or decoding, the network port, idle time inside a step; "
    "'stoker doctor DATA' measures them here"
)
TOO_SHORT = "too short to say what bound it: log more steps than the warm-up"
MISLEADS = 0.05
"""A typical line misleads where it is off by more than this share of a step."""


def explain_log(log: Log) -> list[str]:
    """Each run by itself, a comparison, and the limits of what was read."""
    judged = [(block, judge(block)) for block in log.blocks]
    shown = []
    for number, (block, found) in enumerate(judged, 1):
        first, *rest = block_lines(block, found)
        shown += [f"{number}. {first}" if len(judged) > 1 else first]
        shown += [f"   {line}" for line in rest]
    if log.cut:
        shown.append(f"more than {plural(MOST_RUNS, 'run')} or their ranks: the rest is left out")
    return [*shown, *comparison(judged), CANNOT_TELL]


def block_lines(block: Block, found: Verdict | None) -> list[str]:
    """What a run is, how long its steps took and waited, what bound it, what to do."""
    return [
        f"{block.title + ': ' if block.title else ''}{what_it_is(block)}",
        step_line(block),
        wait_line(block),
        *misleading_lines(block),
        *(found.lines() if found else [TOO_SHORT]),
    ]


def what_it_is(block: Block) -> str:
    parts = [f"a log of {block.format}", plural(block.lines, "line"), plural(block.steps, "step")]
    if block.epochs > 1:
        parts.append(plural(block.epochs, "epoch"))
    if block.ranks > 1:
        parts.append(plural(block.ranks, "rank"))
    if block.validation_lines:
        passes = plural(block.validations, "validation")
        parts.append(f"{passes} kept apart")
    return ", ".join(parts)


def step_line(block: Block) -> str:
    """The mean step; images a second where the log betrays the batch."""
    judged = block.judged
    text = f"a step took {judged.step_s:.3f} s"
    if block.images and judged.step_s:
        each = " a rank" if block.ranks > 1 else ""
        text += f", {block.images / judged.step_s:,.0f} images/s{each}"
        text += f" (batch {block.images:,.0f})"
    if block.warmup_steps:
        left_out = f"{block.warmup_steps:,} steps" if block.warmup_steps > 1 else "step"
        return f"{text}, without the first {left_out} (warm-up; {block.whole.step_s:.3f} s with)"
    return f"{text}, the warm-up included: too little is logged to leave it out"


def wait_line(block: Block) -> str:
    text = f"of that, {block.judged.wait_s:.3f} s waiting for data ({block.judged.share:.1%})"
    if block.coverage < 0.99:
        text += f", from the {block.coverage:.0%} of steps that the lines average over"
    return text


def misleading_lines(block: Block) -> list[str]:
    """What a reader of the lines would have believed."""
    judged = block.judged
    if abs(block.typical_wait_s - judged.wait_s) <= MISLEADS * judged.step_s:
        return []
    text = f"a typical line shows {block.typical_wait_s:.3f} s of waiting and misleads"
    if hides_wait(block):
        quiet = block.quiet_lines(max(block.typical_wait_s, 0.1 * judged.wait_s))
        lines = block.waits.total()
        some = (
            f"{quiet:,} of {plural(lines, 'line')} show no more, the worst {max(block.waits):.3g} s"
        )
        text += f": {some if quiet < lines else 'no line shows the waits'}"
    if few_stretches_wait(block):
        waiting = sum(s.wait_s > judged.wait_s for s in block.stretches)
        text += f"; {waiting} of {len(block.stretches)} stretches between lines wait"
    return [text]


def comparison(judged: list[tuple[Block, Verdict | None]]) -> list[str]:
    """The quickest run against the slowest, where they did the same work a step."""
    rows = [
        (found.step_s, number, block.images)
        for number, (block, found) in enumerate(judged, 1)
        if found
    ]
    sizes = {round(images) if images else None for _, _, images in rows}
    if len(rows) < 2 or len(sizes) != 1:
        return []
    quick, slow = min(rows), max(rows)
    times = slow[0] / quick[0]
    same = "at the same batch" if None not in sizes else "if the batches were the same"
    return [f"the quickest is {quick[1]}: {times:.2g} times as fast as {slow[1]}, {same}"]
