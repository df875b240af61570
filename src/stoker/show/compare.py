"""`explain` of several runs: a table of one line each, at most 80 columns wide.

Invariant: a directory that cannot be read is a line with its reason; the others are still shown.
"""

from __future__ import annotations

from pathlib import Path

from stoker.errors import StokerError
from stoker.measure.facts_from_events import facts_of_run
from stoker.measure.spans import APART
from stoker.measure.verdict import verdict_of
from stoker.run.directory import Run
from stoker.show.explain import ledger_of
from stoker.text import clock, printable

WIDTH = 80
NAME, MODEL, LIMIT = 17, 11, 10
"""Columns of the text cells. Longer texts are cut."""
DAY_S = 24 * 3600
STATES = {"finished": "finished", "interrupted": "stopped", "rolled back": "running"}


def header() -> str:
    return line("run", "model", "epochs", "top-1", "time", "img/s", "limit", "state")


def row(path: Path) -> tuple[str, bool]:
    """The line of a run, and whether the run could be read."""
    name = name_of(path)
    try:
        return line(name, *cells(Run(path))), True
    except (StokerError, OSError) as error:
        reason = printable(str(error)).removeprefix(printable(str(path))).lstrip("/: ")
        space = WIDTH - NAME - 1
        reason = reason if len(reason) <= space else f"{reason[: space - 3]}..."
        return f"{cut(name, NAME):<{NAME}} {reason}", False


def line(
    name: str, model: str, epochs: str, top1: str, time: str, rate: str, limit: str, state: str
) -> str:
    texts = f"{cut(name, NAME):<{NAME}} {cut(model, MODEL):<{MODEL}}"
    numbers = f"{epochs:>7} {top1:>6} {time:>8} {rate:>6}"
    return f"{texts} {numbers} {cut(limit, LIMIT):<{LIMIT}} {state}".rstrip()


def cells(run: Run) -> tuple[str, str, str, str, str, str, str]:
    """Model, epochs done and planned, latest accuracy, time, images a second, limit and state."""
    model, starts = str(run.record["values"]["model"]), run.starts()
    if not starts:
        return model, "-", "-", "-", "-", "-", state_of(run)
    start = starts[-1]
    steps, evaluations, ledger = run.merged("step"), run.merged("evaluation"), ledger_of(run)
    images = sum(event["batch"] for event in steps)
    done = (steps[-1]["position"] + steps[-1]["batch"]) / max(start["samples"], 1) if steps else 0.0
    work_s = sum(seconds for part, seconds in ledger.parts.items() if part not in APART)
    last = evaluations[-1] if evaluations else None
    verdicts = (verdict_of(facts_of_run(run, attempt)) for attempt in reversed(run.attempts()))
    verdict = next((verdict for verdict in verdicts if verdict), None)
    return (
        model,
        f"{int(done)}/{start['epochs']:g}",
        f"{last['top1'] / last['images']:.1%}" if last else "-",
        clock(ledger.total_s) if ledger.total_s < DAY_S else f"{ledger.total_s / DAY_S:.1f} d",
        f"{images / work_s:,.0f}" if images and work_s > 0 else "-",
        verdict.limit if verdict else "-",
        state_of(run),
    )


def state_of(run: Run) -> str:
    end = run.end()
    if end is None:
        return "running" if run.is_running else "killed" if run.starts() else "new"
    return STATES.get(end["outcome"], "failed")


def name_of(path: Path) -> str:
    """The name of a directory, also of `.` and `runs/x/..`."""
    return printable(path.name if path.name not in ("", "..") else path.resolve().name)


def cut(text: str, width: int) -> str:
    """At most so many columns: of a long text, the beginning and the last letters."""
    text = printable(text)
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 2]}..{text[len(text) - tail :]}"
