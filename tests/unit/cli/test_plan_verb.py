"""stoker plan: what it prints, what it refuses, its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stoker.cli import main
from stoker.cli.plan import parser
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.price import table

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


def test_old_prices_are_refused_without_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "today", lambda: date(2027, 8, 1))
    assert main(["plan", str(tmp_path), "--provider", "aws"]) == BAD_REQUEST
    assert "prices older than 90 days: aws 2026-08-22 (344 days)" in capsys.readouterr().err


def test_providers_with_old_prices_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "today", lambda: date(2026, 11, 17))
    monkeypatch.setattr("stoker.cli.plan.require_packed", lambda data: None)
    monkeypatch.setattr("stoker.cli.plan.show_plans", lambda *words: FINISHED)
    assert main(["plan", str(tmp_path)]) == FINISHED
    left_out = "left out: azure, lambda, nebius, paperspace; --stale-prices uses them"
    assert left_out in capsys.readouterr().out
    assert main(["plan", str(tmp_path), "--stale-prices"]) == FINISHED
    assert "left out" not in capsys.readouterr().out


def test_a_run_is_planned_on_machines_of_a_past_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    for name in ("cat", "dog"):
        (photos / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((20, 24, 3), 20 * number + len(name), dtype=np.uint8)
            Image.fromarray(pixels).save(photos / name / f"{number}.jpg")
    packed = tmp_path / "packed"
    assert main(["pack", str(photos), str(packed)]) == FINISHED
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
    words = ["plan", str(packed), *flags, "--spot", "--gpu", "A100", "--all", "--json", str(file)]
    capsys.readouterr()
    assert main(words) == FINISHED
    printed = capsys.readouterr().out
    assert "the cheapest: stoker launch sky --cloud aws" in printed
    plans = json.loads(file.read_text())
    assert {plan["machine"] for plan in plans} >= {"p4d.24xlarge"}
    for plan in plans:
        if plan["spot_dollars"]:
            assert 0 < plan["spot_dollars"]["low"] <= plan["spot_dollars"]["high"]
        assert plan["price_date"] == "2025-03-03"
