"""Runs that appear, grow, resume, vanish, are damaged or replaced while they are watched."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.commit import sha256_of
from stoker.show.watch import watcher as watchers
from stoker.show.watch.checkpoint_text import CheckpointReader
from stoker.show.watch.watcher import MOST_RUNS, RunsWatcher, RunWatcher


def save(run: Path, step: int, size: int = 1000) -> Path:
    """A committed checkpoint, without weights that mean anything."""
    folder = run / "checkpoints" / f"{step:09d}"
    folder.mkdir(parents=True)
    files = {}
    for name in ("weights.safetensors", "state.pt"):
        (folder / name).write_bytes(bytes(size))
        files[name] = {"bytes": size, "sha256": "0" * 64}
    text = json.dumps({"step": step, "position": step, "files": files}).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / "COMMITTED").write_text(sha256_of(text))
    os.utime(folder / "COMMITTED", (1000.0, 1000.0))
    (run / "last").write_text(folder.name)
    return folder


class TestRun:
    def test_begins_later(self, tmp_path: Path) -> None:
        watcher = RunWatcher(tmp_path / "run")
        assert watcher.look().state == "waiting"
        assert "waiting for" in watcher.look().notice
        maker = RunMaker(tmp_path / "run", steps=100)
        assert watcher.look().state == "new"
        maker.attempt(0, 50, None)
        run = watcher.look(maker.clock.now)
        assert (run.state, run.step, run.notice) == ("running", "step 50 of 100", "")

    def test_resumes(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        watcher = RunWatcher(tmp_path)
        assert watcher.look(maker.clock.now + 1e4).state == "killed"
        maker.attempt(40, 80, None)
        run = watcher.look(maker.clock.now)
        assert (run.attempt, run.step, run.state) == ("attempt 2", "step 80 of 100", "running")
        assert [text[0] for text in run.attempts] == ["2", "1"]
        assert "20 of them repeated" in run.attempts[1]

    def test_is_removed_and_put_back(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path / "run", steps=100).attempt(0, 60, None)
        watcher = RunWatcher(maker.run.path)
        before = watcher.look(maker.clock.now)
        maker.run.path.rename(tmp_path / "elsewhere")
        gone = watcher.look(maker.clock.now)
        assert (gone.state, gone.step) == ("gone", before.step)
        assert "removed or moved" in gone.notice
        (tmp_path / "elsewhere").rename(maker.run.path)
        back = watcher.look(maker.clock.now)
        assert (back.state, back.step, back.notice) == ("running", before.step, "")

    def test_is_replaced(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path / "run", steps=100).attempt(0, 60, None)
        watcher = RunWatcher(maker.run.path)
        watcher.look(maker.clock.now)
        shutil.rmtree(maker.run.path)
        other = RunMaker(tmp_path / "run", steps=40, model="resnet50").attempt(0, 10, None)
        run = watcher.look(other.clock.now)
        assert (run.about, run.step) == ("resnet50 on photos", "step 10 of 40")
        assert "another run" in run.notice

    def test_is_damaged(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        watcher = RunWatcher(tmp_path)
        watcher.look(maker.clock.now)
        events = maker.run.events_path(1, 0)
        events.unlink()
        events.mkdir()
        assert watcher.look(maker.clock.now).incidents
        shutil.rmtree(tmp_path / "attempts")
        (tmp_path / "attempts").write_text("")
        assert watcher.look(maker.clock.now).path == tmp_path

    def test_never_raises(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        watcher = RunWatcher(tmp_path)
        watcher.look(maker.clock.now)
        monkeypatch.setattr(watchers, "curves_of", lambda history: 1 / 0)
        maker.attempt(60, 70, None)
        run = watcher.look(maker.clock.now)
        assert (run.state, run.step) == ("unreadable", "step 60 of 100")
        assert "division by zero" in run.notice

    def test_is_read_afresh_after_many_looks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchers, "RENEW_AFTER", 3)
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        watcher = RunWatcher(tmp_path)
        runs = [watcher.look(maker.clock.now) for _ in range(8)]
        assert len({run.step for run in runs}) == 1 and not any(run.notice for run in runs)

    def test_the_verdict_is_computed_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[object] = []
        real = watchers.verdict_of_run
        monkeypatch.setattr(
            watchers, "verdict_of_run", lambda run: (calls.append(run), real(run))[1]
        )
        maker = RunMaker(tmp_path, steps=200).attempt(0, 100, None)
        watcher = RunWatcher(tmp_path)
        for _ in range(3):
            assert watcher.look(maker.clock.now).verdict
        assert len(calls) == 1

    def test_nothing_is_written(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        save(tmp_path, 50)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        RunWatcher(tmp_path).look(maker.clock.now)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


class TestCheckpoint:
    def test_none(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        assert (
            "a kill now loses everything" in RunWatcher(tmp_path).look(maker.clock.now).checkpoint
        )
        assert RunWatcher(tmp_path).look(maker.clock.now + 1e5).checkpoint == "none"

    def test_step_age_and_size(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        save(tmp_path, 50, size=5_000_000)
        (tmp_path / "checkpoints" / "000000050" / "COMMITTED").touch()
        os.utime(tmp_path / "checkpoints" / "000000050" / "COMMITTED", (maker.clock.now,) * 2)
        text = RunWatcher(tmp_path).look(maker.clock.now + 90).checkpoint
        assert text == "step 50, saved 1:30 ago, 10.0 MB; 10 later steps not saved"

    def test_a_torn_one_does_not_count(self, tmp_path: Path) -> None:
        save(tmp_path, 50)
        (save(tmp_path, 60) / "COMMITTED").write_text("0" * 64)
        (save(tmp_path, 70) / "state.pt").write_bytes(b"short")
        last = CheckpointReader(tmp_path).last()
        assert last and (last.step, last.bytes) == (50, 2000)

    def test_the_pointer_counts_first(self, tmp_path: Path) -> None:
        save(tmp_path, 90)
        save(tmp_path, 50)
        last = CheckpointReader(tmp_path).last()
        assert last and last.step == 50

    def test_is_not_read_twice(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save(tmp_path, 50)
        reader = CheckpointReader(tmp_path)
        first = reader.last()
        monkeypatch.setattr("stoker.show.watch.checkpoint_text.manifest_of", lambda folder: 1 / 0)
        assert reader.last() == first

    def test_no_pipe_makes_it_wait(self, tmp_path: Path) -> None:
        folder = save(tmp_path, 50)
        for path in (folder / "manifest.json", tmp_path / "last"):
            path.unlink()
            os.mkfifo(path)
        assert CheckpointReader(tmp_path).last() is None

    def test_a_newer_format_is_said(self, tmp_path: Path) -> None:
        maker = RunMaker(tmp_path, steps=100).attempt(0, 60, None)
        folder = save(tmp_path, 50)
        text = json.dumps({"format": 99, "step": 50}).encode()
        (folder / "manifest.json").write_bytes(text)
        (folder / "COMMITTED").write_text(sha256_of(text))
        assert "newer version" in RunWatcher(tmp_path).look(maker.clock.now).checkpoint


class TestRuns:
    def test_a_folder_is_all_runs_in_it_and_those_that_begin_later(self, tmp_path: Path) -> None:
        for name in "ab":
            RunMaker(tmp_path / name, steps=10)
        runs = RunsWatcher([tmp_path])
        assert [run.path.name for run in runs.looks()] == ["a", "b"]
        RunMaker(tmp_path / "aa", steps=10)
        assert [run.path.name for run in runs.looks()] == ["a", "aa", "b"]
        assert runs.note == ""

    def test_only_the_newest_of_many(self, tmp_path: Path) -> None:
        for number in range(MOST_RUNS + 3):
            RunMaker(tmp_path / f"{number:02d}", steps=10)
            os.utime(tmp_path / f"{number:02d}", (1e9 - number,) * 2)
        runs = RunsWatcher([tmp_path])
        names = [run.path.name for run in runs.looks()]
        assert names == [f"{number:02d}" for number in range(MOST_RUNS)]
        assert runs.note == "newest 12 of 15"

    def test_a_run_that_is_named_twice_is_one(self, tmp_path: Path) -> None:
        RunMaker(tmp_path / "a", steps=10)
        assert len(list(RunsWatcher([tmp_path, tmp_path / "a"]).looks())) == 1

    def test_a_missing_run_beside_others(self, tmp_path: Path) -> None:
        RunMaker(tmp_path / "a", steps=10)
        states = [run.state for run in RunsWatcher([tmp_path / "a", tmp_path / "b"]).looks()]
        assert states == ["new", "waiting"]
