"""evaluation.json comes back as it was written, and nothing wrong in it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluations import data, report
from golden import check_golden
from stoker.errors import BadRequest, NewerFormat
from stoker.run.directory import Run
from stoker.run.evaluation import NAME, report_bytes, report_data


def kept(folder: Path, content: bytes | dict[str, Any]) -> Run:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / NAME).write_bytes(text)
    return Run(folder)


def test_it_comes_back(tmp_path: Path) -> None:
    made = report(classes=["käse\ud800", *report().classes[1:]])
    run = kept(tmp_path, report_bytes(report_data(made, step=8, position=256)))
    evaluation = run.evaluation()
    assert evaluation is not None
    assert (evaluation.step, evaluation.position) == (8, 256)
    assert evaluation.report == made


def test_numbers_that_are_not_finite_are_null() -> None:
    text = report_bytes(report_data(report(loss=float("nan"))))
    assert json.loads(text)["loss"] is None
    assert b"NaN" not in text


def test_a_row_takes_a_line() -> None:
    assert b"\n  [10, 6, 9],\n" in report_bytes(report_data(report()))


def test_a_run_without_one_has_none(tmp_path: Path) -> None:
    assert Run(tmp_path).evaluation() is None


def test_a_newer_one_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(NewerFormat):
        kept(tmp_path, data(format=2)).evaluation()


def test_what_a_newer_version_adds_is_ignored(tmp_path: Path) -> None:
    evaluation = kept(tmp_path, data(tomorrow=[1])).evaluation()
    assert evaluation is not None
    assert evaluation.report == report()


WORST = {"sample": 1, "path": "x", "label": 1, "predicted": 2, "probability": 0.5, "loss": 1.0}
HOSTILE: dict[str, bytes | dict[str, Any]] = {
    "empty": b"",
    "not JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no text": b'{"format": 1, "split": "\xff"}',
    "no format": data(format=...),
    "a wrong format": data(format=True),
    "no step": data(step=...),
    "a step that is text": data(step="8"),
    "no images": data(images=0),
    "NaN images": data(images=float("nan")),
    "an enormous number": data(images=10**40),
    "no classes": data(classes=[]),
    "two classes of one name": data(classes=["cat"] * 7),
    "a class that is a number": data(classes=[1] * 7),
    "too few rows": data(per_class=[[30, 19, 28]]),
    "a row that is short": data(per_class=[[1, 2]] * 7),
    "more hits than images": data(per_class=[[1, 2, 2]] * 7),
    "a negative count": data(per_class=[[-1, 0, 0]] * 7),
    "other sums": data(top1=18),
    "a confusion of no class": data(confusions=[[1, 7, 2]]),
    "a class confused with itself": data(confusions=[[1, 1, 2]]),
    "more confusions than errors": data(confusions=[[1, 0, 12]]),
    "fewer bins": data(bins=[[1, 0, 0.5]]),
    "bins with more hits than images": data(bins=[[1, 2, 0.5]] * 15),
    "a worst sample of no class": data(worst=[WORST | {"label": 7}]),
    "a worst sample without path": data(worst=[{"sample": 1}]),
    "a worst sample predicted as no class": data(worst=[WORST | {"predicted": 9}]),
    "an infinite loss": data(worst=[WORST | {"loss": float("inf")}]),
    "an ECE that is text": data(ece="low"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refuses_a_damaged_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest, match="is damaged"):
        kept(tmp_path, HOSTILE[name]).evaluation()


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(BadRequest, match="damaged"):
        Run(tmp_path).evaluation()


def test_refuses_one_that_is_too_large(tmp_path: Path) -> None:
    with (tmp_path / NAME).open("wb") as file:
        file.truncate(1 << 27)
    with pytest.raises(BadRequest, match="damaged"):
        Run(tmp_path).evaluation()


def test_refusals_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = []
    for name in ("empty", "no format", "no step", "other sums", "more confusions than errors"):
        with pytest.raises(BadRequest) as caught:
            kept(Path(), HOSTILE[name]).evaluation()
        lines.append(f"{name}: {caught.value}")
    check_golden("run_evaluation", lines)
