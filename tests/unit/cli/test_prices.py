"""`stoker prices`: what a user sees first, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from datetime import date
from pathlib import Path

import pytest

from golden import check_golden
from stoker.cli import main, prices
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.price import catalogue
from stoker.show import prices as show_prices

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


def test_a_refresh_is_used_until_it_is_damaged(
    capsys: pytest.CaptureFixture[str], desk: Path
) -> None:
    text = HEAD + "gpu_1x_a10,A10,1,30,200,0.9,,us-east-1\n"
    (desk / "vms.csv").write_text(text)
    words = ("--refresh", "vms.csv", "--provider", "lambda", "--date", "2026-11-01")
    assert "1 machine of lambda with the prices of 2026-11-01" in lines_of(capsys, *words)[0]
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
    "--provider acme",
    "--max-price 0.001",
    "--max-price 0",
    "--on-day yesterday",
    "--on-day 2026-05-01",
    "--history p9.large",
    "--history p4d.24xlarge --region mars",
    "--region us-east-1",
    "--refresh vms.csv",
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
