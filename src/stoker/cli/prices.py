"""stoker prices: what GPU machines cost, from where and since when."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.cli.streams import check_json, write_figures
from stoker.commit import json_bytes
from stoker.errors import FINISHED, BadRequest
from stoker.price.history import series
from stoker.price.offers import Offer, newest_offers, offers_on, select_offers
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
    refreshed_lines,
    table_lines,
)
from stoker.text import say, shown


def parser() -> Parser:
    prices = Parser(
        prog="stoker prices",
        usage="stoker prices [--gpu NAME] [--provider NAME] [--on-day DAY] [flags]",
        description="Show what GPU machines cost, with the source and age of each price: the "
        "cheapest machine of each GPU first. Dollars are for an hour of the whole machine.",
        examples=(
            "stoker prices --gpu A100",
            "stoker prices --history p4d.24xlarge --region us-east-1",
            "stoker prices --refresh vms.csv --provider aws --date 2026-11-01",
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
    add("--refresh", metavar="FILE", default="", help="take a SkyPilot catalogue's newer prices")
    add("--date", metavar="DAY", default="", help="with --refresh: the day of the catalogue")
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
    if bool(parsed.refresh) != bool(parsed.date) or (parsed.refresh and not parsed.provider):
        raise BadRequest("--refresh FILE needs --provider NAME and --date DAY, the catalogue's day")
    if parsed.region and not parsed.history:
        raise BadRequest("--region goes with --history MACHINE")
    if parsed.max_price is not None and not parsed.max_price > 0:
        raise BadRequest(f"--max-price must be above 0, not {parsed.max_price:g}")


def day_of(flag: str, text: str) -> date:
    """The day of a flag. Raises BadRequest where it is not one."""
    if (day := parse_day(text)) is None:
        raise BadRequest(f"{flag} must be a day such as 2026-08-22, not '{shown(text)}'")
    return day


def refresh(parsed: argparse.Namespace) -> int:
    from stoker.price.catalogue import read_catalogue

    day = day_of("--date", parsed.date)
    offers = read_catalogue(Path(parsed.refresh), parsed.provider, day)
    say(*refreshed_lines(offers, str(write_user_table(offers))))
    return FINISHED


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
