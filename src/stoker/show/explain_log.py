"""`explain` of training logs of other programs: at most eight lines for each run."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.measure.logs.runs import MOST_RANKS, MOST_RUNS, Log, LoggedRun
from stoker.measure.logs.verdict import few_stretches_wait, hides_wait, verdict_of_log
from stoker.measure.verdict import Verdict
from stoker.text import plural, rough

CANNOT_TELL = (
    "such a log does not show reading or decoding, the network port or idle time inside a step; "
    "'stoker doctor DATA' measures them on this machine"
)
TOO_SHORT = "too short to tell what slowed it: log more steps than the warm-up"
MISLEADS = 0.05
"""A typical line misleads if its wait differs from the mean by more than this share of a step."""


def explain_log(log: Log) -> list[str]:
    """The lines to print: each run, a comparison, and what such logs cannot show."""
    verdicts = [verdict_of_log(run) for run in log.runs]
    shown = []
    for number, (run, verdict) in enumerate(zip(log.runs, verdicts, strict=True), 1):
        first, *rest = run_lines(run, verdict)
        shown += [f"{number}. {first}" if len(verdicts) > 1 else first]
        shown += [f"   {line}" for line in rest]
    if log.cut:
        shown.append(f"more than {MOST_RUNS} runs or {MOST_RANKS} ranks: the rest is left out")
    return [*shown, *comparison(log.runs, verdicts), CANNOT_TELL]


def run_lines(run: LoggedRun, verdict: Verdict | None) -> list[str]:
    """What the log holds, how long steps took and waited, what limited them and what to do."""
    return [
        f"{run.title + ': ' if run.title else ''}{summary(run)}",
        step_line(run),
        wait_line(run),
        *misleading_lines(run),
        *(verdict.lines() if verdict else [TOO_SHORT]),
    ]


def summary(run: LoggedRun) -> str:
    parts = [f"a log of {run.format}", plural(run.lines, "line"), plural(run.steps, "step")]
    if run.epochs > 1:
        parts.append(plural(run.epochs, "epoch"))
    if run.ranks > 1:
        parts.append(plural(run.ranks, "rank"))
    if run.validation_lines:
        parts.append(f"{plural(run.validations, 'validation')} not counted")
    return ", ".join(parts)


def step_line(run: LoggedRun) -> str:
    """The mean step, with images a second where the batch size is known."""
    step_s = run.counted.step_s
    text = f"a step took {step_s:.3f} s"
    if run.images and step_s:
        per_rank = " a rank" if run.ranks > 1 else ""
        text += f", {run.images / step_s:,.0f} images/s{per_rank} (batch {run.images:,.0f})"
    if run.warmup_steps:
        warmup = f"{run.warmup_steps:,} steps" if run.warmup_steps > 1 else "step"
        return f"{text}, without the first {warmup} (warm-up; {run.whole.step_s:.3f} s with it)"
    return f"{text}, including the warm-up: too few steps are logged to leave it out"


def wait_line(run: LoggedRun) -> str:
    text = f"of that, {run.counted.wait_s:.3f} s waiting for data ({run.counted.share:.1%})"
    if run.coverage < 0.99:
        text += f", from the {run.coverage:.0%} of steps that the lines average over"
    return text


def misleading_lines(run: LoggedRun) -> list[str]:
    """Where a typical line shows another wait than the mean: what it shows; else nothing."""
    step_s, wait_s, typical_s = run.counted.step_s, run.counted.wait_s, run.typical_wait_s
    if abs(typical_s - wait_s) <= MISLEADS * step_s:
        return []
    text = f"a typical line shows {typical_s:.3f} s of waiting and misleads"
    if hides_wait(run):
        most_s, lines = max(typical_s, 0.1 * wait_s), run.waits.total()
        short = sum(count for line_s, count in run.waits.items() if line_s <= most_s)
        worst = f"{plural(lines, 'line')} show no more, the worst {rough(max(run.waits), 3)} s"
        text += f": {short:,} of {worst}" if short < lines else ": no line shows the waits"
    if few_stretches_wait(run):
        waiting = sum(stretch.wait_s > wait_s for stretch in run.stretches)
        text += f"; {waiting} of {len(run.stretches)} stretches between lines wait"
    return [text]


def comparison(runs: Sequence[LoggedRun], verdicts: Sequence[Verdict | None]) -> list[str]:
    """The fastest run against the slowest, unless their batches differ."""
    rows = [
        (verdict.step_s, number, run.images)
        for number, (run, verdict) in enumerate(zip(runs, verdicts, strict=True), 1)
        if verdict
    ]
    sizes = {round(images) if images else None for _, _, images in rows}
    if len(rows) < 2 or len(sizes) != 1:
        return []
    fastest, slowest = min(rows), max(rows)
    ratio = slowest[0] / fastest[0]
    batch = "at the same batch size" if None not in sizes else "if the batch sizes are equal"
    return [f"run {fastest[1]} is {rough(ratio, 2)} times as fast as run {slowest[1]}, {batch}"]
