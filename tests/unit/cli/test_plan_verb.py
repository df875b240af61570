"""stoker plan: what it prints, what it refuses, its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stoker.cli import main
from stoker.cli.plan import parser
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.plan.machines import RentalTerms
from stoker.plan.probe import LoadingProbe
from stoker.plan.ranges import FigureRange
from stoker.price.hourly import ON_DEMAND, SPOT
from stoker.price.table import packaged_offers

DOCS = Path(__file__).parents[3] / "docs"


def test_claims_that_contradict_themselves_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claims.toml"
    file.write_text("[[claim]]\nprice_per_hour = 11.00\nbid = 10.00\n")
    assert main(["plan", "--check", str(file)]) == BAD_REQUEST
    assert capsys.readouterr().out.startswith("REFUSED: claim 1: ")


def test_a_warning_alone_is_no_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "claims.toml"
    file.write_text("[[claim]]\nlr = 3.3\nbatch_size = 2048\n")
    assert main(["plan", "--check", str(file)]) == FINISHED
    warning, summary = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: claim 1: ")
    assert summary == "OK: no contradiction in 1 claim"


def test_a_name_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claims.toml"
    zones = 'zone = "a\\u001b[2J"\nvolume_zone = "{other}"'
    file.write_text(f'[[claim]]\nname = "x\\u001b[2J"\n{zones}\n')
    assert main(["plan", "--check", str(file)]) == BAD_REQUEST
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--check"], ["--check", "nowhere.toml"], ["--chek", "x"]])
def test_wrong_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == BAD_REQUEST
    assert capsys.readouterr().err.startswith("stoker: ")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--deadline", "soon"], "--deadline must be a duration such as 2h or 90m, not 'soon'"),
        (["--deadline", "0h"], "--deadline must be a duration"),
        (["--budget", "-3"], "--budget must be above 0, not -3"),
        (["--bid", "nan"], "--bid must be above 0, not nan"),
        (["--disk", "0"], "--disk must be above 0"),
        (["--on-day", "2026-05-01"], "2026-05-01"),
        (["--on-day", "May"], "--on-day must be a day"),
        (["--gpu", "A1000"], "no machine with the GPU 'A1000'"),
        (["--bid", "0.0001"], "under the lowest spot price"),
        (["--provider", "azure"], "is not packed: run stoker pack"),
        (["--stale-prices"], "is not packed: run stoker pack"),
        (["--model", "resnet1000"], "resnet1000"),
        (["--price-per-hour", "1"], "--price-per-hour is the price of this machine: add --here"),
        (["--here", "--price-per-hour", "0"], "--price-per-hour must be above 0"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tmp_path), *flags]) == BAD_REQUEST
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--spot", "--all", "--gpu=A100", "--bench=x.json", "--bid=1"])
def test_this_machine_is_not_to_rent(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "set", "--here", flag]) == BAD_REQUEST
    name = flag.partition("=")[0]
    assert f"leave out {name}, or --here" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["planning.md", "money.md", "bench.md"])
def test_every_command_of_a_page_is_one(page: str) -> None:
    text = (DOCS / page).read_text()
    lines = re.findall(r"^\$? ?stoker plan (.*)$", text, re.MULTILINE)
    assert lines or page != "planning.md"
    for line in lines:
        parsed = parser().parse(shlex.split(line, comments=True))
        assert parsed.check is None or (DOCS.parent / parsed.check).exists()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((20, 24, 3), 20 * number + len(name), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.jpg")
    assert main(["pack", str(folder / "photos"), str(folder / "packed")]) == FINISHED
    return folder / "packed"


def plans_on(day: date, packed: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> list[dict]:
    """The plans of a day: the same run, and the same speed of loading."""
    monkeypatch.setattr("stoker.plan.planned.today", lambda: day)
    probe = LoadingProbe({16: 1000.0}, "given")
    monkeypatch.setattr("stoker.plan.planned.measure_probe", lambda *words: probe)
    file = packed.parent / "plan.json"
    words = ["--batch-size", "4", "--image-size", "16", "--json", str(file), *flags]
    assert main(["plan", str(packed), *words]) == FINISHED
    return json.loads(file.read_text())


def test_no_price_is_too_old_for_a_plan(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = date(2026, 11, 18)
    days = [begin + timedelta(days=later) for later in (0, 30, 100, 400)]
    tables, lines = [], []
    for day in days:
        plans = plans_on(day, packed, monkeypatch)
        tables.append({(plan["provider"], plan["machine"]): plan for plan in plans})
        lines.append([w for w in capsys.readouterr().out.splitlines() if "OLD PRICES" in w])
    assert len({tuple(table) for table in tables}) == 1  # the same machines on each day
    assert {provider for provider, _ in tables[0]} >= {"aws", "azure", "gcp", "lambda", "runpod"}
    for name, first in tables[0].items():
        for kind in ("on_demand_dollars", "spot_dollars"):
            if first[kind] is None:
                continue
            ranges = [table[name][kind] for table in tables]
            assert len({figure["middle"] for figure in ranges}) == 1
            widths = [figure["high"] / figure["low"] for figure in ranges]
            assert all(later > 1.01 * earlier for earlier, later in pairwise(widths)), (name, kind)
    assert [len(loud) for loud in lines[1:]] == [1, 1, 1]
    assert "runpod 118 days" in lines[1][0] and "stoker prices --refresh" in lines[1][0]


def test_a_flag_of_earlier_versions_changes_nothing(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = date(2027, 8, 1)
    plans = plans_on(day, packed, monkeypatch, "--provider", "aws")
    assert plans == plans_on(day, packed, monkeypatch, "--provider", "aws", "--stale-prices")
    assert {plan["price_age_days"] for plan in plans} == {344}


def test_a_price_that_its_owner_states_does_not_age() -> None:
    offer = replace(packaged_offers()[0], provider="", on_demand=2.0, spot=None)
    stays = FigureRange.exactly(1.0)
    terms = RentalTerms(hours_between=4, start_s=stays, save_s=stays, begins=date(2030, 1, 1))
    assert terms.price(offer, ON_DEMAND, 1.0) == FigureRange.exactly(2.0)
    assert terms.price(offer, SPOT, 1.0) is None


def test_a_run_is_planned_on_machines_of_a_past_day(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    flags = [
        "--batch-size",
        "4",
        "--image-size",
        "16",
        "--on-day",
        "2025-03-03",
        "--spot",
        "--gpu",
        "A100",
        "--all",
    ]
    words = ["plan", str(packed), *flags, "--json", str(file)]
    capsys.readouterr()
    assert main(words) == FINISHED
    printed = capsys.readouterr().out
    assert "the cheapest: stoker launch sky --cloud aws" in printed
    assert "OLD PRICES" not in printed
    plans = json.loads(file.read_text())
    assert {plan["machine"] for plan in plans} >= {"p4d.24xlarge"}
    for plan in plans:
        if plan["spot_dollars"]:
            assert 0 < plan["spot_dollars"]["low"] <= plan["spot_dollars"]["high"]
        assert (plan["price_date"], plan["price_age_days"]) == ("2025-03-03", 0)
