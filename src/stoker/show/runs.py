"""`stoker runs`: the table of runs, and what may still be billed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.fleet.sky.records import LAUNCHED, LAUNCHING, UNLISTED, CloudJob, UnreadableJob
from stoker.run.listing import RunSummary
from stoker.text import clock, cut, plural, shown

NAME, MODEL = 40, 18
"""Columns at most; longer texts are cut."""
STATES = {
    LAUNCHING: "the launch did not end; 'stoker runs --refresh' reads its state back",
    LAUNCHED: "'stoker runs --refresh' reads its state back",
    UNLISTED: "SkyPilot does not list it: look at the provider's own list",
    "STOPPED": "stopped, and its disk is billed",
}
"""States in words; others are SkyPilot's own."""


def run_lines(runs: Sequence[RunSummary]) -> list[str]:
    """A line for each run."""
    names = [cut(run.path.name, NAME) for run in runs]
    models = [cut(run.model, MODEL) for run in runs]
    name_width = max([len("run"), *map(len, names)])
    model_width = max([len("model"), *map(len, models)])
    shows_dollars = any(run.dollars is not None for run in runs)
    lines = [
        f"{'run':<{name_width}}  {'model':<{model_width}}  {'state':<8}  {'top-1':>6}    hours"
        f"{'    dollars' * shows_dollars}"
    ]
    for run, name, model in zip(runs, names, models, strict=True):
        if run.problem:
            lines.append(f"{name:<{name_width}}  cannot be read: {shown(run.problem)}")
            continue
        best = "-" if run.best is None else f"{run.best:.1%}"
        texts = f"{name:<{name_width}}  {model:<{model_width}}  {run.state:<8}"
        dollars = "-" if run.dollars is None else f"{run.dollars:,.2f}"
        dollars = f"  {dollars:>9}" if shows_dollars else ""
        lines.append(f"{texts}  {best:>6}  {run.hours:7.2f}{dollars}")
    return lines


def billed_lines(
    jobs: Sequence[tuple[Path, CloudJob | UnreadableJob]],
    controllers: Mapping[str, str],
    now: float,
) -> list[str]:
    """What may still be billed: machines, their disks, and buckets."""
    lines = [job_line(job, now) for _, job in jobs if not is_gone(job)]
    lines += [
        f"  {shown(name)}, from which SkyPilot watches jobs: {STATES.get(state, shown(state))}"
        for name, state in controllers.items()
    ]
    buckets = sorted({job.bucket for _, job in jobs if isinstance(job, CloudJob)})
    lines += [f"  {shown(bucket)}: storage, until you delete it" for bucket in buckets]
    return ["may still be billed:", *lines] if lines else []


def is_gone(job: CloudJob | UnreadableJob) -> bool:
    return isinstance(job, CloudJob) and not job.may_be_billed


def job_line(job: CloudJob | UnreadableJob, now: float) -> str:
    if isinstance(job, UnreadableJob):
        return f"  {shown(str(job.path))} cannot be read: {shown(job.why)}"
    state = STATES.get(job.state, shown(job.state))
    if job.checked and job.state not in (LAUNCHING, LAUNCHED):
        state += f", read back {clock(now - job.checked)} ago"
    age = clock(now - job.launched)
    return f"  {shown(job.name)} ({shown(job.machine)}), launched {age} ago: {state}"


def nothing_line(folders: Sequence[Path]) -> str:
    names = " or ".join(shown(str(folder)) for folder in folders)
    return f"no run in {names}"


def figures_of(
    runs: Sequence[RunSummary],
    jobs: Sequence[tuple[Path, CloudJob | UnreadableJob]],
    controllers: Mapping[str, str],
) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "runs": [
            {
                "path": shown(str(run.path)),
                "model": run.model,
                "state": run.state,
                "best": run.best,
                "hours": run.hours,
                "dollars": run.dollars,
                "last": run.last,
                "problem": run.problem or None,
            }
            for run in runs
        ],
        "jobs": [job_figures(folder, job) for folder, job in jobs],
        "controllers": dict(controllers),
    }


def job_figures(folder: Path, job: CloudJob | UnreadableJob) -> dict[str, Any]:
    if isinstance(job, UnreadableJob):
        return {"path": shown(str(folder)), "problem": job.why, "may_be_billed": True}
    return {
        "path": shown(str(folder)),
        "name": job.name,
        "machine": job.machine,
        "state": job.state,
        "launched": job.launched,
        "checked": job.checked,
        "bucket": job.bucket,
        "may_be_billed": job.may_be_billed,
    }


def refreshed_line(count: int, gone: int) -> str:
    return f"{plural(count, 'job')} read back from SkyPilot, {gone} gone"
