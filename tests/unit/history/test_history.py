"""The history of a run, read at once and followed while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import BEGAN, PAUSE_S, STARTING_S, RunMaker
from stoker.history.history import RunFollower, history_of
from stoker.run.directory import Run
from stoker.run.events import Events

STEPS = 400


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run", steps=STEPS, ranks=2)


@pytest.fixture
def run(maker: RunMaker) -> Run:
    return maker.attempt(0, 250, None).attempt(201, STEPS).run


def test_each_step_counts_once(run: Run) -> None:
    history = history_of(run)
    assert history.steps == STEPS
    assert sum(point.count for point in history.points) == STEPS
    assert [point.step for point in history.points] == sorted(p.step for p in history.points)
    assert (history.ledger.redone_steps, history.attempts[1].redone) == (49, 49)


def test_time_never_falls_and_pauses_do_not_count(run: Run) -> None:
    history = history_of(run)
    seconds = [point.seconds for point in history.points]
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(history.ledger.total_s, abs=0.1)
    wall_s = history.points[-1].time - BEGAN
    assert wall_s - seconds[-1] > 0.9 * PAUSE_S


def test_attempts(run: Run) -> None:
    first, second = history_of(run).attempts.values()
    assert (first.number, first.steps, first.end) == (1, 250, None)
    assert first.start is not None
    assert second.end is not None
    assert second.end["outcome"] == "finished"
    assert first.began == pytest.approx(BEGAN + STARTING_S)
    assert second.began is not None
    assert first.last is not None
    assert second.began - first.last == pytest.approx(PAUSE_S + STARTING_S, abs=1)


def test_evaluations_are_merged_and_the_first_best_one_is_named(run: Run) -> None:
    history = history_of(run)
    positions = [event["position"] for event in history.evaluations]
    assert positions == sorted(set(positions))
    assert history.best == history.evaluations[-1]
    used = [event["seconds_used"] for event in history.evaluations]
    assert used == sorted(used)


def test_ranks_are_those_of_the_newest_attempt(run: Run) -> None:
    ranks = history_of(run).ranks
    assert sorted(ranks) == [0, 1]
    assert all(rank.steps == STEPS - 201 for rank in ranks.values())
    assert all(rank.host == "made" for rank in ranks.values())
    own_s = ranks[1].recent_own_s
    assert own_s is not None
    assert own_s == pytest.approx(0.288 * 0.95, rel=0.1)


def test_usage_comes_from_one_rank_of_a_machine(run: Run) -> None:
    (host,) = history_of(run).usage
    probes = [e for a in (1, 2) for e in run.attempt_events(a) if e["kind"] == "probe"]
    assert host == "made"
    assert len(history_of(run).usage[host]) <= len(probes)


def test_speed_and_what_is_left(maker: RunMaker) -> None:
    history = history_of(maker.attempt(0, 300, None).run)
    assert history.images_per_s == pytest.approx(256 / 0.288, rel=0.1)
    assert history.remaining_s == pytest.approx(100 * 0.288, rel=0.3)


def test_nothing_is_left_of_a_finished_run(run: Run) -> None:
    assert history_of(run).remaining_s == 0


def test_dollars_stop_where_the_run_did(run: Run) -> None:
    history = history_of(run)
    assert history.start is not None
    last = history.last
    assert last is not None
    assert history.dollars(last) == pytest.approx((last - BEGAN) / 3600 * 2.0, rel=0.01)
    assert history.dollars(last + 1e6) == pytest.approx(history.dollars(last))
    assert history.per_hour == 2.0


def test_dollars_of_a_run_that_runs_go_on(maker: RunMaker) -> None:
    history = history_of(maker.attempt(0, 100, None).run)
    assert history.last is not None
    early, late = history.dollars(history.last + 1), history.dollars(history.last + 101)
    assert early is not None
    assert late is not None
    assert late - early == pytest.approx(100 / 3600 * 2.0)


def test_no_price_no_dollars(tmp_path: Path) -> None:
    history = history_of(RunMaker(tmp_path / "run", dollars_per_h=None).attempt(0, 20).run)
    assert (history.dollars(), history.per_hour) == (None, None)


def test_states(maker: RunMaker) -> None:
    assert history_of(maker.run).state() == "new"
    history = history_of(maker.attempt(0, 100, None).run)
    assert history.last is not None
    assert history.state(history.last + 1) == "running"
    assert history.state(history.last + 10_000) == "killed"
    assert history_of(maker.attempt(100, 200, "interrupted").run).state() == "stopped"
    assert history_of(maker.attempt(200, STEPS).run).state() == "finished"


def test_a_run_without_events(maker: RunMaker) -> None:
    history = history_of(maker.run)
    assert (history.steps, history.points, history.start, history.end) == (0, [], None, None)
    assert (history.images_per_s, history.remaining_s, history.dollars()) == (None, None, None)
    assert (history.best, history.last, history.newest) == (None, None, 0)
    assert history.sums.curve().loss.tolist() == []


class TestFollower:
    def test_sees_what_is_added_and_reads_nothing_twice(self, maker: RunMaker) -> None:
        follower = RunFollower(maker.run)
        maker.run.attempt_path(1).mkdir(parents=True)
        events = Events(maker.run.events_path(1, 0))
        events.write("attempt", step=0, position=0, steps=50)
        for number in range(50):
            place = {"step": number, "position": number, "batch": 1, "images": 1}
            events.write("step", **place, parts={"forward": 0.5})
            if number % 7 == 0:
                events.flush()
                history = follower.look()
                assert history.steps == number + 1
                assert history.ledger.total_s == pytest.approx(0.5 * (number + 1))
        events.close()
        assert follower.look().steps == 50
        assert follower.look() is follower.look()

    def test_merges_again_when_an_attempt_resumes_earlier(self, maker: RunMaker) -> None:
        follower = RunFollower(maker.run)
        maker.attempt(0, 250, None)
        before = follower.look()
        assert (before.steps, before.ledger.redone_steps) == (250, 0)
        maker.attempt(201, 260, None)
        after = follower.look()
        assert (after.steps, after.ledger.redone_steps) == (260, 49)
        assert sum(point.count for point in after.points) == 260

    def test_equals_a_single_look(self, maker: RunMaker) -> None:
        follower = RunFollower(maker.run)
        for first, last in ((0, 120), (90, 200), (200, 320)):
            maker.attempt(first, last, None)
            follower.look()
        followed, read = follower.look(), history_of(maker.run)
        assert followed.ledger.total_s == pytest.approx(read.ledger.total_s)
        assert followed.evaluations == read.evaluations
        assert len(followed.incidents) == len(read.incidents)

    def test_of_a_run_that_is_not_there_yet(self, tmp_path: Path) -> None:
        follower = RunFollower(Run(tmp_path / "later"))
        assert follower.look().steps == 0
        RunMaker(tmp_path / "later", steps=50).attempt(0, 50)
        assert follower.look().steps == 50


def test_incidents_are_kept_with_rank_and_attempt(run: Run) -> None:
    events = Events(run.events_path(2, 1))
    events.write("stall", words="no step for 60 s")
    events.close()
    (incident,) = history_of(run).incidents
    assert (incident["rank"], incident["attempt"]) == (1, 2)
