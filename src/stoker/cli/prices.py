"""stoker prices: what GPU machines cost, from where and since when."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.cli.streams import check_json, write_figures
from stoker.commit import json_bytes
from stoker.errors import FAILED, FINISHED, BadRequest
from stoker.price.history import series
from stoker.price.offers import Offer, day_in_use, newest_offers, offers_on, select_offers
from stoker.price.table import parse_day, today, write_user_table
from stoker.show.prices import (
    ROWS_PER_GPU,
    chosen,
    csv_lines,
    figures_of,
    history_figures,
    history_lines,
    left_out_line,
    offer_lines,
    refreshed_line,
    table_lines,
)
from stoker.text import plural, say, shown


def parser() -> Parser:
    prices = Parser(
        prog="stoker prices",
        usage="stoker prices [--gpu NAME] [--provider NAME] [--on-day DAY] [flags]",
        description="Show what GPU machines cost, with the source and age of each price: the "
        "cheapest machine of each GPU first. Dollars are for an hour of the whole machine.",
        examples=(
            "stoker prices --gpu A100",
            "stoker prices --history p4d.24xlarge --region us-east-1",
            "stoker prices --refresh ~/.sky/catalogs/v8",
        ),
    )
    add = prices.add_argument
    add("--gpu", metavar="NAME", default="", help="machines with this GPU; A100 means both sizes")
    add("--provider", metavar="NAME", default="", help="machines of this provider, such as aws")
    add("--max-price", metavar="X", type=float, help="machines with a price of at most X dollars")
    add("--on-day", metavar="DAY", default="", help="AWS's prices of a past day, 2025-03-01")
    add("--all", action="store_true", help="every machine")
    add("--history", metavar="MACHINE", default="", help="what an AWS machine has cost since 2022")
    add("--region", metavar="NAME", default="", help="with --history: in one region")
    add("--json", metavar="FILE", default="", help="write the figures to a file; - prints them")
    add("--csv", action="store_true", help="print the machines as CSV")
    help = "take the newer prices of SkyPilot's folder of catalogues, or of one file"
    add("--refresh", metavar="FOLDER", default="", help=help)
    help = "with --refresh: the day of the prices, where they are older than their files"
    add("--date", metavar="DAY", default="", help=help)
    return prices


def run(arguments: Sequence[str]) -> int:
    parsed = parser().parse(arguments)
    check_flags(parsed)
    check_json("" if parsed.json == "-" else parsed.json)
    if parsed.refresh:
        return refresh(parsed)
    if parsed.history:
        return show_history(parsed)
    day = day_of("--on-day", parsed.on_day) if parsed.on_day else None
    most = float("inf") if parsed.max_price is None else parsed.max_price
    offers = offers_on(day) if day else newest_offers()
    return show_offers(parsed, select_offers(offers, parsed.provider, parsed.gpu, most), day)


def check_flags(parsed: argparse.Namespace) -> None:
    """Raise BadRequest for flags that do not go together."""
    if parsed.date and not parsed.refresh:
        raise BadRequest("--date goes with --refresh FOLDER")
    if parsed.region and not parsed.history:
        raise BadRequest("--region goes with --history MACHINE")
    if parsed.max_price is not None and not 0 < parsed.max_price < math.inf:
        raise BadRequest(f"--max-price must be above 0, not {parsed.max_price:g}")


def day_of(flag: str, text: str) -> date:
    """The day of a flag. Raises BadRequest where it is not one."""
    if (day := parse_day(text)) is None:
        raise BadRequest(f"{flag} must be a day such as 2026-08-22, not '{shown(text)}'")
    return day


def refresh(parsed: argparse.Namespace) -> int:
    """Take the catalogues of a folder as the user's tables. One that is refused does not hold up
    the others."""
    from stoker.price.catalogue import Refused, catalogue_files, read_catalogue

    stated = day_of("--date", parsed.date) if parsed.date else None
    place = Path(parsed.refresh)
    with suppress(RuntimeError):  # a user that the machine does not know
        place = place.expanduser()
    files = catalogue_files(place, parsed.provider)
    taken, refused = [], []
    for provider, file in files.items():
        try:
            catalogue = read_catalogue(file, provider, stated)
        except Refused as error:
            if len(files) == 1:
                raise
            refused.append(f"refused: {error}")
            continue
        if len(files) == 1 and not catalogue.offers:
            raise BadRequest(f"{shown(str(file))} has no GPU machine with a price")
        in_use = day_in_use(provider)
        newer = in_use if in_use > catalogue.day.isoformat() else ""
        if catalogue.offers and not newer:
            taken.append(write_user_table(catalogue.offers))
        say(refreshed_line(catalogue, newer))
    if taken:
        dated = "" if stated else ", dated by their files"
        say(f"{plural(len(taken), 'table')} in {shown(str(taken[0].parent))}{dated}")
    say(*refused, stream=sys.stderr)
    return FAILED if refused else FINISHED


def show_offers(parsed: argparse.Namespace, offers: Sequence[Offer], day: date | None) -> int:
    now = day or today()
    rows = 0 if parsed.all else ROWS_PER_GPU if parsed.gpu else 1
    if parsed.json or parsed.csv:
        offers = chosen(offers, 0)
        if parsed.csv:
            say(*csv_lines(offers), wrap=False)
        write_json(parsed.json, figures_of(offers, now))
        return FINISHED
    shown_offers = chosen(offers, rows)
    width = shutil.get_terminal_size().columns
    say(*offer_lines(shown_offers, width, now), wrap=False)
    if len(shown_offers) < len(offers):
        say(left_out_line(len(offers), len(shown_offers)))
    say("", *table_lines(offers, now), wrap=False)
    return FINISHED


def show_history(parsed: argparse.Namespace) -> int:
    prices = series(parsed.history, parsed.region)
    if parsed.json:
        write_json(parsed.json, history_figures(parsed.history, parsed.region, prices))
        return FINISHED
    width = shutil.get_terminal_size().columns
    say(*history_lines(parsed.history, parsed.region, prices, width), wrap=False)
    return FINISHED


def write_json(file: str, figures: object) -> None:
    """Write the figures to the file of --json, or print them for -."""
    if file == "-":
        say(*json_bytes(figures).decode().splitlines(), wrap=False)
    elif file:
        write_figures(file, figures)
