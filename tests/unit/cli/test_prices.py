"""`stoker prices`: what a user sees first, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from clock import written_on
from golden import check_golden
from stoker.cli import main, prices
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, BadRequest
from stoker.price import catalogue
from stoker.price.table import user_folder
from stoker.show import prices as show_prices
from stoker.stores.settings import cache_folder

NOW = date(2026, 11, 17)
HEAD = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region\n"


@pytest.fixture(autouse=True)
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No tables of the user's own, a fixed day, 80 columns."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    for module in (prices, catalogue):
        monkeypatch.setattr(module, "today", lambda: NOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["prices", *words]) == FINISHED
    return capsys.readouterr().out.splitlines()


def test_shown_golden(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = lines_of(capsys)
    one = lines_of(capsys, "--gpu", "A100", "--provider", "aws")
    past = lines_of(capsys, "--on-day", "2025-03-01", "--gpu", "V100")
    history = lines_of(capsys, "--history", "p4d.24xlarge")
    there = lines_of(capsys, "--history", "g6.xlarge", "--region", "us-east-1")
    monkeypatch.setenv("COLUMNS", "160")
    wide = lines_of(capsys, "--gpu", "H100", "--max-price", "10")
    assert max(map(len, narrow + one + past + history + there)) <= 80
    assert 130 <= max(map(len, wide)) <= 160
    check_golden("prices", [*narrow, "", *one, "", *past, "", *history, "", *there, "", *wide])


def test_short_by_default_and_whole_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(lines_of(capsys)) < 60
    assert len(lines_of(capsys, "--all")) > 420


def test_the_cheapest_gpu_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    main(["prices", "--json", "-", "--gpu", "A100-80GB"])
    machines = json.loads(capsys.readouterr().out)["machines"]
    costs = [min(m["spot"] or 1e9, m["on_demand"]) / m["gpus"] for m in machines]
    assert costs == pytest.approx(sorted(costs), abs=2e-3)
    assert all(m["source"] and m["date"] and m["age_days"] >= 87 for m in machines)


def test_csv_and_json_have_every_machine(capsys: pytest.CaptureFixture[str], desk: Path) -> None:
    rows = list(csv.DictReader(io.StringIO("\n".join(lines_of(capsys, "--csv")))))
    assert len(rows) == 420
    lines_of(capsys, "--json", "all.json")
    assert len(json.loads((desk / "all.json").read_text())["machines"]) == 420
    lines_of(capsys, "--history", "p4d.24xlarge", "--json", "days.json")
    assert len(json.loads((desk / "days.json").read_text())["days"]) == 1258


LAMBDA = HEAD + "gpu_1x_a10,A10,1,30,200,0.9,,us-east-1\n"


def test_a_folder_of_catalogues_is_taken_at_once(
    capsys: pytest.CaptureFixture[str], desk: Path
) -> None:
    written_on(date(2026, 11, 2), desk / "v8" / "lambda" / "vms.csv", LAMBDA)
    wrong = LAMBDA.replace("0.9", "90000") + "x1,A10,1,30,200,0.8,,us-east-1\n"
    written_on(date(2026, 11, 3), desk / "v8" / "verda" / "vms.csv", wrong)
    written_on(date(2026, 11, 3), desk / "v8" / "do" / "vms.csv", HEAD)
    old = LAMBDA.replace("us-east-1", "us")
    written_on(date(2025, 1, 1), desk / "v8" / "azure" / "vms.csv", old)
    lines = lines_of(capsys, "--refresh", "v8")
    check_golden("prices_refresh", [line.replace(str(desk), "DESK") for line in lines])
    folder = desk / "home" / "stoker" / "prices"
    assert {path.name for path in folder.iterdir()} == {"lambda.csv", "verda.csv"}
    shown = lines_of(capsys, "--provider", "lambda")
    assert any("2026-11-02  15 days" in line for line in shown)
    # An older file does not replace a newer table.
    written_on(date(2026, 10, 1), desk / "v8" / "lambda" / "vms.csv", LAMBDA)
    again = lines_of(capsys, "--refresh", "v8", "--provider", "lambda")
    assert again[0].endswith("not taken: the table in use is of 2026-11-02")


def test_a_refused_file_does_not_hold_up_the_others(
    capsys: pytest.CaptureFixture[str], desk: Path
) -> None:
    written_on(date(2026, 11, 2), desk / "v8" / "lambda" / "vms.csv", LAMBDA)
    written_on(date(2026, 11, 2), desk / "v8" / "aws" / "vms.csv", "a,b\n1,2\n")
    (desk / "v8" / "gcp").mkdir()
    os.mkfifo(desk / "v8" / "gcp" / "vms.csv")
    assert main(["prices", "--refresh", "v8"]) == FAILED
    printed = capsys.readouterr()
    assert printed.out.startswith("lambda") and "1 table in" in printed.out
    assert [line[:25] for line in printed.err.splitlines()] == [
        "refused: v8/aws/vms.csv i",
        "refused: v8/gcp/vms.csv i",
    ]
    assert main(["prices", "--refresh", "v8", "--provider", "aws"]) == BAD_REQUEST


def test_what_cannot_be_taken_is_a_bad_request(
    capsys: pytest.CaptureFixture[str], desk: Path
) -> None:
    written_on(date(2026, 11, 3), desk / "v8" / "do" / "vms.csv", HEAD)
    assert main(["prices", "--refresh", "v8"]) == BAD_REQUEST
    assert "v8/do/vms.csv has no GPU machine with a price" in capsys.readouterr().err
    written_on(date(2026, 11, 2), desk / "v8" / "lambda" / "vms.csv", LAMBDA)
    # A day that only one of the files may have: that one is taken.
    written_on(NOW, desk / "v8" / "verda" / "vms.csv", LAMBDA)
    assert main(["prices", "--refresh", "v8", "--date", "2026-11-10"]) == FAILED
    printed = capsys.readouterr()
    assert "1 table in" in printed.out
    assert "--date 2026-11-10 is after the day on which v8/lambda/vms.csv" in printed.err
    for place in ("~nobody-of-that-name/x", "~/nothing", "zero\0byte"):
        assert main(["prices", "--refresh", place]) == BAD_REQUEST


def test_a_refresh_is_used_until_it_is_damaged(
    capsys: pytest.CaptureFixture[str], desk: Path
) -> None:
    written_on(NOW, desk / "vms.csv", LAMBDA)
    words = ("--refresh", "vms.csv", "--provider", "lambda", "--date", "2026-11-01")
    assert lines_of(capsys, *words)[0] == "lambda      2026-11-01  1 GPU machine"
    assert any("2026-11-01  16 days" in line for line in lines_of(capsys, "--provider", "lambda"))
    table = desk / "home" / "stoker" / "prices" / "lambda.csv"
    assert [path.name for path in table.parent.iterdir()] == ["lambda.csv"]
    table.write_text("rubbish")
    assert main(["prices"]) == BAD_REQUEST
    assert str(table) in capsys.readouterr().err
    lines_of(capsys, *words)
    assert any("2026-11-01" in line for line in lines_of(capsys))


MISTAKES = (
    "--gpu A101x",
    "--gpu MI300X",
    "--gpu h10O",
    "--provider acme",
    "--max-price 0.001",
    "--gpu V100-16GB --provider aws",
    "--gpu V100-16GB --provider aws --max-price 99",
    "--gpu V100-16GB --max-price 0.1",
    "--max-price 0",
    "--max-price inf",
    "--on-day yesterday",
    "--on-day 2026-05-01",
    "--history p9.large",
    "--history p4d.24xlarge --region mars",
    "--region us-east-1",
    "--refresh .",
    "--refresh vms.csv --provider aws --date soon",
    "--refresh none.csv --provider aws --date 2026-11-01",
    "--date 2026-11-01",
    "--json nowhere/x.json",
)


def test_mistakes_golden(capsys: pytest.CaptureFixture[str]) -> None:
    for words in MISTAKES:
        assert main(["prices", *words.split()]) == BAD_REQUEST
    check_golden("prices_mistakes", capsys.readouterr().err.splitlines())


def test_names_of_a_table_are_no_control_codes() -> None:
    assert show_prices.cut("a\x1b[2Jb", 30) == "a\\x1b[2Jb"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME and without a name, as containers have."""

    def unknown(number: int) -> Any:
        raise KeyError(number)

    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_a_user_without_a_home_sees_prices(
    nobody: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of their own has no place."""
    assert any("T4" in line for line in lines_of(capsys, "--gpu", "T4", "--provider", "aws"))
    with pytest.raises(BadRequest, match="set HOME or XDG_DATA_HOME"):
        user_folder()
    with pytest.raises(BadRequest, match="with STOKER_CACHE"):
        cache_folder()
    with pytest.raises(BadRequest, match="with STOKER_CACHE"):
        cache_folder({"STOKER_CACHE": "~nobody-has-this-name/x"})
