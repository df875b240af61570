"""`explain`: what happened to a run, where its time went and what limited it, in at most 25 lines.

Reads the run directory only, so that it works for a running, an ended and a copied run alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import BadRequest
from stoker.measure.facts_from_events import facts_of_run
from stoker.measure.spans import APART, PARTS
from stoker.measure.verdict import verdict_of
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


@dataclass(frozen=True)
class Ledger:
    """Where the seconds of all attempts went."""

    parts: dict[str, float]
    """Seconds of the steps that count, part by part."""
    startup_s: float
    redone_s: float
    redone_steps: int

    @property
    def total_s(self) -> float:
        return sum(self.parts.values()) + self.startup_s + self.redone_s


def ledger_of(run: Run) -> Ledger:
    """The time of rank 0 over all attempts; steps that a later attempt repeated are apart."""
    parts: Counter[str] = Counter()
    startup = redone = 0.0
    counted = {(event["attempt"], event["step"]) for event in run.merged("step")}
    redone_steps = 0
    for event in run.events():
        seconds = event.get("parts", {})
        if event["kind"] == "attempt":
            startup += event["startup_s"]
        elif event["kind"] == "step" and (event["attempt"], event["step"]) not in counted:
            redone += sum(seconds.values())
            redone_steps += 1
        else:
            parts.update(seconds)
    return Ledger(dict(parts), startup, redone, redone_steps)


def explain(run: Run, price: HourlyPrice | None = None) -> list[str]:
    """At most MOST_LINES lines. A `price` counts in place of those that the run recorded."""
    record = run.record
    starts = run.starts()
    incidents = [event for event in run.events() if event["kind"] in ("stall", "faults")]
    if not starts:
        end = run.end()
        outcome = f": {end['outcome']} ({one_line(end['reason'])})" if end else ""
        return [f"{run.path}: nothing has been trained yet{outcome}", *damage_lines(run, incidents)]
    ledger = ledger_of(run)
    head = [
        f"{record['values']['model']} on {Path(record['data']).name} "
        f"({plural(starts[-1]['samples'], 'image')}, {plural(len(record['classes']), 'class')}), "
        f"recipe {record['recipe']}",
        *start_lines(run),
        *history_lines(run, starts, ledger, incidents),
        *result_lines(run, with_top5=len(record["classes"]) > 5),
        *class_line(run),
    ]
    verdicts = (verdict_of(facts_of_run(run, attempt)) for attempt in reversed(run.attempts()))
    # The latest attempt with enough steps for a verdict.
    verdict = next((verdict.lines() for verdict in verdicts if verdict), [])
    rest = [*cost_lines(run, price), *verdict, *damage_lines(run, incidents)]
    return [*head, *time_lines(run, ledger, MOST_LINES - len(head) - len(rest)), *rest]


def start_lines(run: Run) -> list[str]:
    """The weights that the run began with, if it loaded any."""
    line = run.start.get("line")
    return [one_line(line)] if isinstance(line, str) else []


def damage_lines(run: Run, incidents: list[Event]) -> list[str]:
    """Notes about damaged events, and about faults that a test injected."""
    injected = {event["attempt"] for event in incidents if event["kind"] == "faults"}
    notes = run.damage.notes(run.path)
    if injected:
        numbers = ", ".join(map(str, sorted(injected)))
        notes = [*notes, f"faults were injected on purpose in attempt {numbers}"]
    return [f"note: {note}" for note in notes]


def history_lines(
    run: Run, starts: list[Event], ledger: Ledger, incidents: list[Event]
) -> list[str]:
    """Attempts, how the run ended, repeated steps and trouble on the way."""
    steps = run.merged("step")
    done, total = (steps[-1]["step"] + 1 if steps else 0), starts[-1]["steps"]
    end = run.end()
    if end is None:
        state = "running" if run.is_running else "killed (the same command goes on)"
    elif end["outcome"] == "finished":
        state = f"finished early ({one_line(end['reason'])})" if end["reason"] else "finished"
    else:
        state = f"{end['outcome']} ({one_line(end['reason'])})"
    ranks = plural(starts[-1]["world"], "rank")
    lines = [
        f"{state}: step {done:,} of {total:,}, {plural(len(starts), 'attempt')}, {ranks} on "
        f"{starts[-1]['environment']['device']}, "
        f"{plural(starts[-1]['environment']['threads'], 'thread')}",
        *masks_line(starts[-1]),
        starts[-1]["derived"],
    ]
    if ledger.redone_steps:
        lines.append(
            f"{plural(ledger.redone_steps, 'step')} repeated after interruptions "
            f"({clock(ledger.redone_s)})"
        )
    lines += trouble_lines(run, incidents)
    if starts[-1]["unseen"]:
        lines.append(f"{plural(starts[-1]['unseen'], 'sample')} of the last epoch not used")
    return lines


def trouble_lines(run: Run, incidents: list[Event]) -> list[str]:
    """Roll-backs and stalls: how many, and the latest of each."""
    taken = Remedies(run.path).taken
    stalls = [event["words"] for event in incidents if event["kind"] == "stall"]
    lines = [f"{plural(len(taken), 'roll-back')}, the latest: {taken[-1].text()}"] if taken else []
    return lines + ([f"{plural(len(stalls), 'stall')}, the latest: {stalls[-1]}"] if stalls else [])


def result_lines(run: Run, with_top5: bool) -> list[str]:
    """The latest accuracy, the best one and the curve."""
    evaluations = run.merged("evaluation")
    if not evaluations:
        return ["not evaluated yet"]
    shares = [event["top1"] / event["images"] for event in evaluations]
    # Of equal ones the latest, which is the one that the run keeps.
    best = max(range(len(evaluations)), key=lambda number: (shares[number], number))
    last = evaluations[-1]
    top5 = f", top-5 {last['top5'] / last['images']:.2%}" if with_top5 else ""
    return [
        f"top-1 {shares[-1]:.2%}{top5} on "
        f"{plural(last['images'], 'image')} at epoch {last['epoch']:.2f}; best "
        f"{shares[best]:.2%} at epoch {evaluations[best]['epoch']:.2f}",
        f"top-1  {sparkline(shares)}  {min(shares):.0%} to {max(shares):.0%}",
    ]


def class_line(run: Run) -> list[str]:
    """Macro accuracy and the most frequent confusion of the latest evaluation; a note where the
    file that keeps them is damaged."""
    evaluations = run.merged("evaluation")
    try:
        kept = run.evaluation()
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


def time_lines(run: Run, ledger: Ledger, most: int) -> list[str]:
    """Where the time went, and how many images a second were trained."""
    images = sum(event["batch"] for event in run.merged("step"))
    parts = {"startup": ledger.startup_s, **{p: ledger.parts.get(p, 0.0) for p in PARTS}}
    parts["redone"] = ledger.redone_s
    lines = [f"{clock(ledger.total_s)} in all:"]
    for name, seconds in largest(parts, most - 2, ledger.total_s):
        share = seconds / max(ledger.total_s, 1e-9)
        lines.append(
            f"  {LABELS.get(name, name):<23}{clock(seconds):>9} {share:6.1%}  {bar(share)}"
        )
    if images:
        work = sum(s for part, s in ledger.parts.items() if part not in APART)
        lines.append(
            f"{images:,} images: {images / max(work, 1e-9):,.0f} a second in training, "
            f"{images / max(ledger.total_s, 1e-9):,.0f} over all"
        )
    return lines


def largest(parts: dict[str, float], most: int, total_s: float) -> list[tuple[str, float]]:
    """At most so many parts, in their order; the small ones are added to `other`."""
    by_size = sorted((part for part in parts if part != "other"), key=parts.__getitem__)
    named = [part for part in by_size if parts[part] > WORTH_A_LINE * total_s][-(most - 1) :]
    rest = sum(seconds for part, seconds in parts.items() if part not in named)
    rows = [(part, seconds) for part, seconds in parts.items() if part in named]
    return [*rows, ("other", rest)] if rest > 0 else rows
