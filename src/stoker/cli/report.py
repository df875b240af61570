"""stoker report RUN: one HTML file about a run, several runs, a sweep or a study of tickets, which
opens without a server or a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.flags import Parser, add_price_flag, check_price
from stoker.cli.places import run_folders
from stoker.cli.streams import check_output
from stoker.errors import FINISHED, BadRequest, StokerError
from stoker.run.directory import REPORT, Run
from stoker.run.listing import runs_below
from stoker.stores.location import is_location
from stoker.text import plural, say, shown, size

if TYPE_CHECKING:
    from stoker.price.hourly import HourlyPrice
    from stoker.show.report.charts import Chart
    from stoker.show.report.elements import Html


def parser() -> Parser:
    flags = Parser(
        prog="stoker report",
        usage="stoker report RUN [RUN ...] [flags]",
        description="Write one HTML file about a run, running or ended: its result, where time "
        "and money went, curves, classes, machines and recipe. Several runs are compared; so are "
        "those of a folder, of a sweep or of a study of tickets. It needs no server and no link.",
        examples=(
            "stoker report runs/photos-first-look-*",
            "stoker report RUN --out photos.html --price-per-hour 1.50",
            "stoker report RUN RUN                     what differs, and what came of it",
            "stoker report RUN --png pictures          the charts one by one, for slides",
        ),
    )
    add = flags.add_argument
    help = "a folder that 'stoker train', 'sweep' or 'tickets' wrote, a folder of runs, or s3://..."
    add("runs", metavar="RUN", nargs="+", help=help)
    place = f"{REPORT} in RUN; of several runs, or one in a store, here"
    add("--out", metavar="FILE", default="", help=f"where to write it [{place}]")
    add(
        "--png", metavar="FOLDER", default="", help="also draw the charts as PNG (needs matplotlib)"
    )
    add_price_flag(flags, "dollars for an hour of each machine [what the run recorded]")
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    check_price(parsed.price_per_hour)
    paths = [Path(path) for path in run_folders(parsed.runs)]
    is_one = len(paths) == 1
    is_folder = is_one and paths[0].is_dir() and not Run(paths[0]).exists
    directory = opened(str(paths[0])) if is_one and not is_folder else None
    is_here = is_one and not is_location(parsed.runs[0])
    target = parsed.out or str(paths[0] / REPORT if is_here else REPORT)
    check_output("--out", target)
    if parsed.png:
        check_folder(parsed.png)
    price = None
    if parsed.price_per_hour is not None:
        from stoker.price.machine_here import price_here

        price = price_here(parsed.price_per_hour, "off")
    if directory:
        write(directory, target, parsed.png, price)
    else:
        page = folder_page(paths[0], price) if is_folder else comparison(paths, price)
        write_compared(page, target, parsed.png)
    return FINISHED


def opened(path: str) -> Run:
    """The run in a folder. Raises BadRequest where there is none, or run.json is damaged."""
    directory = Run(path)
    if not Path(path).exists():
        raise BadRequest(f"no run at {shown(path)}: 'stoker runs' lists those in a folder")
    if not directory.exists:
        raise no_run(path)
    _ = directory.record
    return directory


def no_run(path: str) -> BadRequest:
    return BadRequest(
        f"{shown(path)} is not a run (no run.json), and holds none: name a folder that 'stoker "
        "train', 'sweep' or 'tickets' wrote"
    )


def check_folder(folder: str) -> None:
    """Raise BadRequest where pictures cannot be written, before time is spent on them."""
    if Path(folder).exists() and not Path(folder).is_dir():
        raise BadRequest(f"--png {shown(folder)} is not a folder: name a folder")
    from stoker.show.report.png import require_matplotlib

    require_matplotlib()


@dataclass(frozen=True)
class ComparedPage:
    """A page about several runs, and its charts of lines."""

    page: Html
    charts: Sequence[Chart]


def folder_page(folder: Path, price: HourlyPrice | None) -> ComparedPage:
    """The page about the runs in a folder. Raises BadRequest where it has none."""
    from stoker.show.report.compare import MOST_RUNS

    if study := study_page(folder, price):
        return study
    paths = list(runs_below(folder))
    if not paths:
        raise no_run(str(folder))
    return comparison(paths[:MOST_RUNS], price, len(paths) - MOST_RUNS)


def study_page(folder: Path, price: HourlyPrice | None) -> ComparedPage | None:
    """The page about the sweep or the ticket study in a folder; None where there is none. Raises
    BadRequest where its plan or a result is damaged."""
    from stoker.fleet.grid.directory import Grid
    from stoker.study.recorded import is_sweep, newest_plan, sweep_of
    from stoker.study.tickets.recorded import is_ticket_study, tickets_of

    grid = Grid(folder)
    plan = newest_plan(grid)
    if plan and is_sweep(plan):
        from stoker.show.report.compare import comparison_charts
        from stoker.show.report_studies.sweep_page import sweep_page

        page, runs = sweep_page(sweep_of(plan), grid, price)
        return ComparedPage(page, comparison_charts(runs))
    if plan and is_ticket_study(plan):
        from stoker.show.report_studies.ticket_page import ticket_page

        return ComparedPage(*ticket_page(tickets_of(plan), grid))
    return None


def comparison(paths: Sequence[Path], price: HourlyPrice | None, left_out: int = 0) -> ComparedPage:
    """The page that compares runs. Raises BadRequest where none of them can be read."""
    from stoker.show.report.compare import (
        compared_runs,
        comparison_charts,
        comparison_page,
        drawn_runs,
    )

    runs = compared_runs(paths, price)
    if all(one.problem for one in runs):
        raise BadRequest(f"none of these is a run that can be read: {runs[0].problem}")
    page = comparison_page(runs, price, left_out=max(left_out, 0))
    return ComparedPage(page, comparison_charts(drawn_runs(runs)))


def write(directory: Run, target: str, pictures: str, price: HourlyPrice | None) -> None:
    """Write the page of one run and the pictures that were asked for, and print where. Raises
    StokerError where the disk refuses."""
    from stoker.show.report.facts import facts_of
    from stoker.show.report.page import write_page

    facts = facts_of(directory, price)
    try:
        written = write_page(facts, Path(target))
        say(f"{shown(target)} ({size(written)})")
        if pictures:
            from stoker.show.report.png import write_pictures

            files = write_pictures(facts, Path(pictures))
            say(f"{plural(len(files), 'picture')} in {shown(pictures)}")
    except OSError as error:
        raise refused(target, error) from error


def write_compared(compared: ComparedPage, target: str, pictures: str) -> None:
    """Write a page about several runs and the pictures that were asked for, and print where. Raises
    StokerError where the disk refuses."""
    from stoker.show.report.page import write_document

    try:
        written = write_document(compared.page, Path(target))
        say(f"{shown(target)} ({size(written)})")
        if pictures:
            from stoker.show.report.png import write_line_pictures

            files = write_line_pictures(compared.charts, Path(pictures))
            say(f"{plural(len(files), 'picture')} in {shown(pictures)}")
    except OSError as error:
        raise refused(target, error) from error


def refused(target: str, error: OSError) -> StokerError:
    return StokerError(f"cannot write {shown(target)}: {error.strerror or error}")
