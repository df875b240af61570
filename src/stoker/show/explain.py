"""`explain`: what happened to a run, where its time went and what limited it, in at most 25 lines.

Reads the run directory only, so that it works for a running, an ended and a copied run alike.
"""

from __future__ import annotations

from pathlib import Path

from stoker.errors import BadRequest
from stoker.history.history import RunHistory
from stoker.history.kept_rows import KeptRows
from stoker.history.ledger import TimeLedger
from stoker.history.verdict import verdict_of_run
from stoker.measure.spans import PARTS
from stoker.price.hourly import HourlyPrice
from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.show.console import masks_line
from stoker.show.cost import cost_lines
from stoker.survive.remedies import Remedies
from stoker.text import bar, clock, one_line, plural, sparkline

MOST_LINES = 25
WORTH_A_LINE = 0.001
"""A part below this share of the time is added to `other`."""

LABELS = {
    "startup": "starting up",
    "redone": "repeated after kills",
    "data": "waiting for data",
    "read": "waiting for reads",
    "decode": "waiting for decoding",
    "to_device": "copying to device",
    "exchange": "exchanging gradients",
    "checkpoint": "saving",
    "evaluation": "evaluating",
    "compile": "compiling",
    "measuring": "measuring",
}
"""The labels of parts that are not called by their name."""


def explain(run: Run, price: HourlyPrice | None = None) -> list[str]:
    """At most MOST_LINES lines. A `price` counts in place of those that the run recorded."""
    rows = KeptRows(run)
    history = rows.history()
    record, start, end = history.record, history.start, history.end
    if start is None:
        outcome = f": {end['outcome']} ({one_line(end['reason'])})" if end else ""
        return [f"{run.path}: nothing has been trained yet{outcome}", *damage_lines(history)]
    head = [
        f"{record['values']['model']} on {Path(record['data']).name} "
        f"({plural(start['samples'], 'image')}, {plural(len(record['classes']), 'class')}), "
        f"recipe {record['recipe']}",
        *start_lines(run),
        *history_lines(history, start),
        *result_lines(history, with_top5=len(record["classes"]) > 5),
        *class_line(history),
    ]
    verdict = verdict_of_run(rows)
    lines = verdict.lines() if verdict else []
    rest = [*cost_lines(rows, price), *lines, *damage_lines(history)]
    return [*head, *time_lines(history.ledger, MOST_LINES - len(head) - len(rest)), *rest]


def start_lines(run: Run) -> list[str]:
    """The weights that the run began with, if it loaded any."""
    line = run.start.get("line")
    return [one_line(line)] if isinstance(line, str) else []


def damage_lines(history: RunHistory) -> list[str]:
    """Notes about damaged events, and about faults that a test injected."""
    injected = {event["attempt"] for event in history.incidents if event["kind"] == "faults"}
    notes = history.run.damage.notes(history.run.path)
    if injected:
        numbers = ", ".join(map(str, sorted(injected)))
        notes = [*notes, f"faults were injected on purpose in attempt {numbers}"]
    return [f"note: {note}" for note in notes]


def history_lines(history: RunHistory, start: Event) -> list[str]:
    """Attempts, how the run ended, repeated steps and trouble on the way."""
    ledger, end = history.ledger, history.end
    if end is None:
        state = "running" if history.run.is_running else "killed (the same command goes on)"
    elif end["outcome"] == "finished":
        state = f"finished early ({one_line(end['reason'])})" if end["reason"] else "finished"
    else:
        state = f"{end['outcome']} ({one_line(end['reason'])})"
    attempts = plural(len([one for one in history.attempts.values() if one.start]), "attempt")
    lines = [
        f"{state}: step {history.steps:,} of {start['steps']:,}, {attempts}, "
        f"{plural(start['world'], 'rank')} on {start['environment']['device']}, "
        f"{plural(start['environment']['threads'], 'thread')}",
        *masks_line(start),
        start["derived"],
    ]
    if ledger.redone_steps:
        lines.append(
            f"{plural(ledger.redone_steps, 'step')} repeated after interruptions "
            f"({clock(ledger.redone_s)})"
        )
    lines += trouble_lines(history)
    if start["unseen"]:
        lines.append(f"{plural(start['unseen'], 'sample')} of the last epoch not used")
    return lines


def trouble_lines(history: RunHistory) -> list[str]:
    """Roll-backs and stalls: how many, and the latest of each."""
    taken = Remedies(history.run.path).taken
    stalls = [event["words"] for event in history.incidents if event["kind"] == "stall"]
    lines = [f"{plural(len(taken), 'roll-back')}, the latest: {taken[-1].text()}"] if taken else []
    return lines + ([f"{plural(len(stalls), 'stall')}, the latest: {stalls[-1]}"] if stalls else [])


def result_lines(history: RunHistory, with_top5: bool) -> list[str]:
    """The latest accuracy, the best one and the curve."""
    evaluations, best = history.evaluations, history.best
    if not best:
        return ["not evaluated yet"]
    shares = [event["top1"] / event["images"] for event in evaluations]
    last = evaluations[-1]
    top5 = f", top-5 {last['top5'] / last['images']:.2%}" if with_top5 else ""
    return [
        f"top-1 {shares[-1]:.2%}{top5} on "
        f"{plural(last['images'], 'image')} at epoch {last['epoch']:.2f}; best "
        f"{best['top1'] / best['images']:.2%} at epoch {best['epoch']:.2f}",
        f"top-1  {sparkline(shares)}  {min(shares):.0%} to {max(shares):.0%}",
    ]


def class_line(history: RunHistory) -> list[str]:
    """Macro accuracy and the most frequent confusion of the latest evaluation; a note where the
    file that keeps them is damaged."""
    evaluations = history.evaluations
    try:
        kept = history.run.evaluation()
    except BadRequest as error:
        return [f"note: {error}"]
    if kept is None or not evaluations or kept.position != evaluations[-1]["position"]:
        return []
    report, text = kept.report, ""
    if report.confusions:
        true, predicted, count = report.confusions[0]
        text = (
            f"; most often confused: {report.classes[true]} taken for "
            f"{report.classes[predicted]} ({count:,} of {report.per_class[true][0]:,})"
        )
    return [f"macro accuracy {report.macro:.2%}{text}"]


def time_lines(ledger: TimeLedger, most: int) -> list[str]:
    """Where the time went, and how many images a second were trained."""
    parts = {"startup": ledger.startup_s, **{p: ledger.parts.get(p, 0.0) for p in PARTS}}
    parts["redone"] = ledger.redone_s
    lines = [f"{clock(ledger.total_s)} in all:"]
    for name, seconds in largest(parts, most - 2, ledger.total_s):
        share = seconds / max(ledger.total_s, 1e-9)
        lines.append(
            f"  {LABELS.get(name, name):<23}{clock(seconds):>9} {share:6.1%}  {bar(share)}"
        )
    if images := ledger.images:
        lines.append(
            f"{images:,} images: {images / max(ledger.training_s, 1e-9):,.0f} a second in "
            f"training, {images / max(ledger.total_s, 1e-9):,.0f} over all"
        )
    return lines


def largest(parts: dict[str, float], most: int, total_s: float) -> list[tuple[str, float]]:
    """At most so many parts, in their order; the small ones are added to `other`."""
    by_size = sorted((part for part in parts if part != "other"), key=parts.__getitem__)
    named = [part for part in by_size if parts[part] > WORTH_A_LINE * total_s][-(most - 1) :]
    rest = sum(seconds for part, seconds in parts.items() if part not in named)
    rows = [(part, seconds) for part, seconds in parts.items() if part in named]
    return [*rows, ("other", rest)] if rest > 0 else rows
