"""A follower that reads one rank as a whole, and of the others what they do now."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.history import history as histories
from stoker.history.history import RunFollower, history_of
from stoker.run.summaries import HEAD, RowReader

STEPS = 600


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path, steps=STEPS, ranks=3, gpus=True)


def first_only(maker: RunMaker) -> RunFollower:
    return RunFollower(maker.run, ranks=lambda rank: rank == 0)


def test_the_first_rank_is_whole_and_the_others_are_recent(
    maker: RunMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "TAIL", 1 << 15)
    maker.attempt(0, 400, None).attempt(300, STEPS)
    part, whole = first_only(maker).look(), history_of(maker.run)
    assert part.ledger == whole.ledger and part.points == whole.points
    assert part.evaluations == whole.evaluations and part.usage == whole.usage
    assert {*part.ranks} == {0, 1, 2} and part.ranks[0].steps == whole.ranks[0].steps
    for rank in (1, 2):
        assert 10 < part.ranks[rank].steps < 100 < whole.ranks[rank].steps
        assert part.ranks[rank].host == "made"
        assert part.ranks[rank].recent_own_s == pytest.approx(
            whole.ranks[rank].recent_own_s, rel=0.05
        )


def test_losses_of_the_others_are_left_out(maker: RunMaker) -> None:
    maker.attempt(0, STEPS)
    rows = [history.sums._rows for history in (first_only(maker).look(), history_of(maker.run))]
    images = [sum(row[1] for row in each) for each in rows]
    assert images[1] == 3 * images[0] > 0


def test_what_comes_later_is_read_once(maker: RunMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "TAIL", 1 << 15)
    maker.attempt(0, 500, None)
    follower = first_only(maker)
    before = {rank: own.steps for rank, own in follower.look().ranks.items()}
    for rank in range(3):
        with maker.run.events_path(1, rank).open("ab") as file:
            file.write(b'{"kind": "step", "step": 500, "position": 128000, "time": 1790000300}\n')
    after = {rank: own.steps for rank, own in follower.look().ranks.items()}
    assert after == {rank: count + 1 for rank, count in before.items()}


def test_a_tail_begins_with_a_whole_line(maker: RunMaker) -> None:
    path = maker.attempt(0, STEPS).run.events_path(1, 1)
    assert path.stat().st_size > HEAD + 20_000
    for tail in (9_000, 9_001, 9_217, 10_000):
        reader = RowReader(path, tail=tail)
        rows = list(reader.read())
        assert rows[0]["kind"] == "attempt" and rows[-1]["kind"] == "end"
        steps = [row for row in rows if row["kind"] == "steps"]
        assert steps[-1]["last"] == STEPS - 1
        assert 3 < sum(row["count"] for row in steps) < 40
        assert not reader._damaged and not list(reader.read())


def test_a_short_file_is_read_as_a_whole(maker: RunMaker) -> None:
    path = maker.attempt(0, 20).run.events_path(1, 1)
    rows = list(RowReader(path, tail=1 << 18).read())
    assert sum(row["count"] for row in rows if row["kind"] == "steps") == 20


def test_probes_that_are_not_needed_are_left_out(maker: RunMaker) -> None:
    path = maker.attempt(0, STEPS).run.events_path(1, 1)
    every = list(RowReader(path).read())
    some = list(RowReader(path).read(needs_probes=lambda: False))
    assert any(row["kind"] == "probes" for row in every)
    assert some == [row for row in every if row["kind"] != "probes"]
