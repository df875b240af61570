"""stoker report: where the file goes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.cli import main
from stoker.errors import BAD_REQUEST, FAILED, FINISHED


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return RunMaker(tmp_path / "run", steps=60, dollars_per_h=None).attempt(0, 60).run.path


def output(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    streams = capsys.readouterr()
    return streams.out, streams.err


def test_it_is_written_into_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == FINISHED
    page = (run / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    out, _ = output(capsys)
    assert out == f"{run / 'report.html'} ({len(page.encode()) / 1000:.1f} kB)\n"


def test_it_is_written_elsewhere(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.iterdir())
    target = run.parent / "other.html"
    assert main(["report", str(run), "--out", str(target)]) == FINISHED
    assert target.is_file() and sorted(run.iterdir()) == before


def test_a_price_counts_dollars(run: Path) -> None:
    target = run.parent / "other.html"
    assert main(["report", str(run), "--out", str(target), "--price-per-hour", "3"]) == FINISHED
    assert "$3 an hour" in target.read_text() and 'id="axis-dollars"' in target.read_text()


def test_pictures_come_with_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    assert main(["report", str(run), "--png", str(run.parent / "p")]) == FINISHED
    assert "11 pictures in" in output(capsys)[0]
    assert (run.parent / "p" / "loss-epochs.png").is_file()


def test_several_runs_are_compared_here(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RunMaker(run.parent / "other", steps=60).attempt(0, 60).run.path
    monkeypatch.chdir(run.parent)
    assert main(["report", str(run), str(other), "nowhere"]) == FINISHED
    assert output(capsys)[0].startswith("report.html (")
    page = Path("report.html").read_text()
    assert "<title>Comparison of 3 runs</title>" in page and "unreadable" in page
    assert not (run / "report.html").exists()


def test_the_runs_of_a_folder_are_compared(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stoker.show.report.compare.MOST_RUNS", 2)
    for name in ("one", "two", "three"):
        RunMaker(run.parent / name, steps=60).attempt(0, 60)
    assert main(["report", str(run.parent)]) == FINISHED
    page = (run.parent / "report.html").read_text()
    assert "Comparison of 2 runs" in page and "2 other runs" in page


def test_pictures_of_several_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    words = [str(run), str(run), "--out", str(run.parent / "x.html"), "--png", str(run.parent)]
    assert main(["report", *words]) == FINISHED
    assert "8 pictures in" in output(capsys)[0]
    assert (run.parent / "accuracy-hours.png").is_file()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "no run at nowhere"),
        (["empty"], "is not a run (no run.json), and holds none"),
        (["file"], "is not a run (no run.json)"),
        (["empty", "nowhere"], "none of these is a run that can be read"),
        (["RUN", "RUN", "--out", "missing/x.html"], "its folder does not exist"),
        (["RUN", "--out", "missing/x.html"], "its folder does not exist"),
        (["RUN", "--out", "."], "is a folder: name a file"),
        (["RUN", "--png", "file"], "is not a folder"),
        (["RUN", "--price-per-hour", "-1"], "--price-per-hour must be from 0"),
        ([], "RUN"),
    ],
)
def test_wrong_requests_are_refused(
    run: Path,
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run.parent)
    Path("file").touch()
    Path("empty").mkdir()
    assert main(["report", *(str(run) if word == "RUN" else word for word in words)]) == BAD_REQUEST
    assert complaint in output(capsys)[1]
    assert not (run / "report.html").exists()


def test_a_damaged_record_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "run.json").write_text("{]")
    assert main(["report", str(run)]) == BAD_REQUEST
    assert "run.json is damaged" in output(capsys)[1]


def test_a_disk_that_refuses_is_said(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stoker.show.report.page.write_bytes", refuse)
    assert main(["report", str(run)]) == FAILED
    assert "cannot write" in output(capsys)[1]
