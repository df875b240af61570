"""What `explain` says below the table of several runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from golden import check_golden
from made_runs import RunMaker
from run_records import record
from stoker.cli import main
from stoker.errors import FINISHED
from stoker.history.differences import DATA, RunTraits, traits_of
from stoker.run.directory import Run
from stoker.show.differences import MOST_LINES, difference_lines


def made(path: Path, values: dict[str, Any] | None = None, **options: Any) -> Run:
    """A finished run of so many steps, with other values in its recipe."""
    steps = options.setdefault("steps", 200)
    run = RunMaker(path, **options).attempt(0, steps).run
    changed = run.record
    changed["values"] |= values or {}
    (path / "run.json").write_text(json.dumps(changed))
    return run


def traits(path: Path, **values: Any) -> RunTraits:
    run = Run(path)
    run.create(record(values={"model": "m", **values}), "")
    return traits_of(run)


def check_size(lines: list[str]) -> None:
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines), default=0) <= 80
    assert all(line.isprintable() for line in lines)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [
        made(tmp_path / "first"),
        made(tmp_path / "quick", {"lr": 0.1, "ema": True}, step_s=0.1, dollars_per_h=3.0),
        made(tmp_path / "long", {"lr": 0.1}, steps=400, epochs=20, model="resnet50", ranks=2),
    ]


def test_lines_golden(runs: list[Run]) -> None:
    first, quick, long = map(traits_of, runs)
    worse = replace(quick, limit="data", evaluation={**(quick.evaluation or {}), "top1": 500})
    elsewhere = {(DATA, "name"): "flowers", (DATA, "fingerprint"): "beef"}
    other = replace(worse, settings={**quick.settings, **elsewhere})
    pairs = [(first, each) for each in (quick, long, first, worse, other)]
    lines: list[str] = []
    for group in (*pairs, (first, quick, long), (first,)):
        text = difference_lines(group)
        check_size(text)
        lines += text
    check_golden("explain_differences", lines)


def test_many_runs_and_many_differences(tmp_path: Path) -> None:
    many = {f"key{n}": "v" * 99 for n in range(50)}
    group = [traits(tmp_path / ("x" * 40 + str(n)), lr=n % 3, **many, seed=n) for n in range(30)]
    for text in (difference_lines(group), difference_lines(group[:2])):
        check_size(text)
        assert any("seed" in line for line in text)
    text = difference_lines([group[0], traits(tmp_path / "b", **dict.fromkeys(many, "w"))])
    check_size(text)


def test_every_group_has_a_line_however_many_values_a_recipe_changes(tmp_path: Path) -> None:
    keys = [f"key{n}" for n in range(80)]
    one, other = made(tmp_path / "a", dict.fromkeys(keys, "one" * 7)), Run(tmp_path / "b")
    made(other.path, dict.fromkeys(keys, "other" * 7), dollars_per_h=9.0)
    text = difference_lines([traits_of(one), traits_of(other)])
    check_size(text)
    assert any("dollars an hour 2.0 -> 9.0" in line for line in text)
    assert any(line.startswith("  and ") for line in text)


@pytest.mark.parametrize("count", [2, 3])
def test_hostile_texts_stay_texts(tmp_path: Path, count: int) -> None:
    facts = [{f"k\x1b[2J{n}": f"\x1b]0;{n}\x07" * 50, "lr": f"\n{n}"} for n in range(count)]
    shared = {f"k\x1b[2J{n}": "" for n in range(count)}
    group = [traits(tmp_path / f"a\x1b[31m{n}", **(shared | f)) for n, f in enumerate(facts)]
    text = difference_lines(group)
    check_size(text)
    assert "lr \\n0" in "".join(text)


def test_values_that_differ_at_their_end_are_told_apart(tmp_path: Path) -> None:
    one, other = (traits(tmp_path / end, weights="w" * 90 + end) for end in "ab")
    (line,) = difference_lines([one, other])[2:]
    assert line.endswith("wa -> ..wwwwwwwwwwwwwwwwwb")


def test_runs_that_cannot_be_read_stay_a_line_of_the_table(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(run.path) for run in runs[:2]]
    assert main(["explain", paths[0], str(tmp_path), paths[1]]) == FINISHED
    lines = capsys.readouterr().out.splitlines()
    assert "is not a run" in lines[2]
    assert lines[4:] == difference_lines([traits_of(run) for run in runs[:2]])
    assert main(["explain", paths[0], str(tmp_path)]) == FINISHED
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_stated_price_counts(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(run.path) for run in runs[:2]]

    def dollars(*words: str) -> str:
        assert main(["explain", *paths, *words]) == FINISHED
        lines = capsys.readouterr().out.splitlines()
        return next(line for line in lines if "dollars an epoch" in line)

    assert dollars() != dollars("--price-per-hour", "40")
