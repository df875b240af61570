"""Following a run to its end, whatever the sink does; and nothing of the run is changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fake_sinks import FakeProcess, KeptValues
from made_runs import RunMaker
from stoker.errors import BadRequest, StokerError
from stoker.run.directory import Run
from stoker.track.feed import Feed
from stoker.track.follow import Follower, FollowOptions, await_run, options_of
from stoker.track.process import SinkProcess
from stoker.track.sink import KINDS
from waiting import until

QUICK = FollowOptions(every_s=0.01, patience_s=0.3)
HOSTILE = "\x1b[31m=cmd\n<b>"


class Desk:
    """A follower with a sink that the test drives."""

    def __init__(self, run: Run, options: FollowOptions = QUICK, kind: str = "csv") -> None:
        self.kept, self.lines, self.behaviour = KeptValues(), list[str](), list[str]()
        self.is_stopped = False
        start = cast(
            Callable[[], SinkProcess], lambda: FakeProcess(self.kept, list(self.behaviour))
        )
        self.feed = Feed(run, KINDS[kind], start, self.lines.append)
        self.follower = Follower(run, options, self.tell, kind=KINDS[kind], feed=self.feed)

    def tell(self, line: str) -> None:
        self.lines.append(line)

    def follow(self) -> int:
        return self.follower.follow(lambda: self.is_stopped)


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run", steps=200, ranks=2, step_s=0.6)


@pytest.mark.parametrize(
    ("outcome", "recorded"),
    [("finished", "finished"), ("interrupted", "stopped"), ("failed", "failed"), (None, "stopped")],
)
def test_a_run_that_has_ended(maker: RunMaker, outcome: str | None, recorded: str) -> None:
    desk = Desk(maker.attempt(0, 200, outcome).run)
    assert desk.follow() == 0
    assert desk.kept.steps()[-1] == 200
    assert desk.kept.outcomes == [recorded]
    assert "up to step 200: CSV" in desk.lines[-1]


def test_a_sink_that_never_takes_anything(maker: RunMaker) -> None:
    desk = Desk(maker.attempt(0, 200).run)
    desk.behaviour = ["the server says no"]
    assert desk.follow() == 1
    assert "CSV does not take values (the server says no)" in desk.lines[0]
    assert desk.lines[-1].startswith(
        "CSV did not take everything within 0.3 s (the server says no)"
    )
    assert "up to where it has the run. The same command copies the rest." in desk.lines[-1]


def test_a_sink_that_hangs_at_the_end(maker: RunMaker) -> None:
    desk = Desk(maker.attempt(0, 200).run)
    desk.behaviour = ["ok", "hang"]
    assert desk.follow() == 1
    assert "did not take everything" in desk.lines[-1]


def test_a_sink_that_does_not_finish(maker: RunMaker) -> None:
    desk = Desk(maker.attempt(0, 200).run)
    desk.behaviour = ["ok", "ok", "disk full"]
    assert desk.follow() == 1
    assert "did not take everything within 0.3 s (disk full)" in desk.lines[-1]
    assert "it has the run up to step 200 of 200" in desk.lines[-1]


def test_without_a_limit_of_checkpoints_nothing_is_held_at_the_end(maker: RunMaker) -> None:
    desk = Desk(maker.attempt(0, 200, "failed").run, kind="mlflow")
    assert desk.follow() == 0
    assert desk.kept.steps()[-1] == 200


def test_what_no_checkpoint_covers_is_held_where_the_run_may_go_on(maker: RunMaker) -> None:
    maker.attempt(0, 200, None)
    (maker.run.path / "last").write_text("000000100")
    desk = Desk(maker.run, kind="mlflow")
    assert desk.follow() == 0
    assert 90 < desk.kept.steps()[-1] <= 100
    assert "when a checkpoint covers them" in desk.lines[-1]


@pytest.fixture
def living(maker: RunMaker) -> Iterator[RunMaker]:
    """A run whose lock is held, as by a process that trains."""
    maker.attempt(0, 80, None)
    trainer = Run(maker.run.path)
    trainer.lock()
    try:
        yield maker
    finally:
        trainer.unlock()


def in_background(desk: Desk) -> tuple[threading.Thread, list[Any]]:
    codes: list[Any] = []
    thread = threading.Thread(target=lambda: codes.append(desk.follow()), daemon=True)
    thread.start()
    return thread, codes


def test_a_living_run_is_followed_over_a_resume_to_its_end(living: RunMaker) -> None:
    desk = Desk(living.run)
    thread, codes = in_background(desk)
    until(lambda: desk.kept.steps()[-1:] >= [70])
    living.attempt(60, 200)
    until(lambda: desk.kept.steps()[-1:] == [200])
    assert not codes  # the process still holds the lock
    (living.run.path / "lock").unlink()
    thread.join(30)
    assert codes == [0]
    assert desk.kept.steps() == sorted({*desk.kept.steps()})
    assert len(desk.kept.backs) == 1


def test_once_copies_what_there_is(living: RunMaker) -> None:
    desk = Desk(living.run, FollowOptions(every_s=0.01, once=True))
    assert desk.follow() == 0
    assert desk.kept.steps()[-1] > 60
    assert desk.kept.outcomes == ["following"]


def test_a_stopped_run_is_followed_further_if_asked(maker: RunMaker) -> None:
    desk = Desk(maker.attempt(0, 80, "interrupted").run, FollowOptions(0.01, 0.3, False, True))
    thread, codes = in_background(desk)
    until(lambda: desk.kept.steps()[-1:] == [80])
    maker.attempt(80, 200)
    thread.join(30)
    assert codes == [0]
    assert desk.kept.steps()[-1] == 200


def test_a_stop_request_ends_it_and_the_next_one_goes_on(living: RunMaker) -> None:
    desk = Desk(living.run)
    thread, codes = in_background(desk)
    until(lambda: desk.kept.steps())
    desk.is_stopped = True
    thread.join(20)
    assert codes == [0]
    assert "the same command goes on from there" in desk.lines[-1]
    assert desk.kept.outcomes == ["following"]


def test_a_run_that_is_removed(living: RunMaker) -> None:
    desk = Desk(living.run)
    (living.run.path / "run.json").unlink()
    with pytest.raises(StokerError, match="is gone"):
        desk.follow()


def test_it_waits_for_a_run(tmp_path: Path) -> None:
    lines: list[str] = []
    run = Run(tmp_path / "later")
    stops = iter([False, False, True])
    assert not await_run(run, lines.append, lambda: next(stops), 0.01)
    assert lines == [f"waits for {tmp_path / 'later'}: there is no run yet"]
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "lock").touch()
    thread = threading.Thread(target=lambda: RunMaker(tmp_path / "later"))
    thread.start()
    assert await_run(run, lines.append, lambda: False, 0.01)
    thread.join()


def test_it_does_not_wait_for_what_cannot_become_a_run(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no folder for it"):
        await_run(Run(tmp_path / "no" / "run"), print, lambda: True, 0.01)
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    for path in (tmp_path / "photos", Path(os.devnull)):
        with pytest.raises(BadRequest, match="is not a run"):
            await_run(Run(path), print, lambda: True, 0.01)


def test_what_a_sink_is_told_is_plain_text(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", model=HOSTILE, classes=[HOSTILE]).attempt(0, 5).run
    options = options_of(run, out="x")
    texts = [options.name, options.run_id, *options.parameters.values(), *options.tags.values()]
    assert all(text.isprintable() for text in texts)
    assert options.tags["dataset"] == "photos"
    assert options.tags["device"] == "a GPU"
    assert options.parameters["lr"] == "0.4"
    assert options.run_id == options_of(Run(run.path)).run_id
    assert options.run_id != options_of(RunMaker(tmp_path / "other").run).run_id
