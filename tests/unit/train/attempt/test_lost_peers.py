"""Who is lost when a collective breaks: named from the run directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from stoker.errors import FAILED, STEPPED_ASIDE, PeerLost, StokerError
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.train.attempt import lost_peers as peers
from stoker.train.attempt.lost_peers import naming_lost_peers

GLOO = "[/pytorch/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711"


@pytest.fixture(autouse=True)
def quick_and_elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WAIT_S", 0.0)
    monkeypatch.setenv("STOKER_ELASTIC", "1")


def begin(run: Run, ranks: int) -> list[Events]:
    made = [Events(run.events_path(1, rank)) for rank in range(ranks)]
    for rank, events in enumerate(made):
        environment = {"host": f"node-{rank}"}
        events.write("attempt", position=0, step=0, rank=rank, environment=environment)
        events.flush()
    return made


def lose(run: Run, events: Events, error: Exception) -> str:
    with pytest.raises(PeerLost) as caught, naming_lost_peers(run, 1, events):
        raise error
    assert caught.value.exit_code == STEPPED_ASIDE
    return str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError(GLOO), dist.DistBackendError("nccl")])
def test_those_who_say_nothing_are_named_with_their_host(tmp_path: Path, error: Exception) -> None:
    run = Run(tmp_path)
    ours, noticed, _, ended = begin(run, 4)
    noticed.write("peer_lost")
    ended.write("end", outcome="finished")
    noticed.flush()
    ended.flush()
    assert lose(run, ours, error) == "lost rank 2 on node-2: what was saved before is safe"
    assert [event["kind"] for event in run.attempt_events(1)] == ["attempt", "peer_lost"]


def test_where_all_are_alive_the_connection_was_lost(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ours, other = begin(run, 2)
    other.write("peer_lost")
    other.flush()
    assert "all of them are alive" in lose(run, ours, RuntimeError(GLOO))


@pytest.mark.parametrize("outcome", ["failed", "refused"])
def test_one_that_ended_by_itself_is_quoted(tmp_path: Path, outcome: str) -> None:
    run = Run(tmp_path)
    ours, other = begin(run, 2)
    other.write("end", outcome=outcome, reason="no room for checkpoints")
    other.flush()
    assert lose(run, ours, RuntimeError(GLOO)) == "rank 1 failed: no room for checkpoints"


def test_before_an_attempt_nobody_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerLost, match="before this attempt"), naming_lost_peers(Run(tmp_path)):
        raise dist.DistStoreError("timed out")


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError(GLOO)])
def test_other_errors_stay_what_they_are(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, naming_lost_peers(Run(tmp_path)):
        raise error
    assert caught.value is error


def test_a_run_that_is_not_elastic_fails_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOKER_ELASTIC")
    run = Run(tmp_path)
    ours, _ = begin(run, 2)
    with pytest.raises(StokerError, match="lost rank 1 on node-1") as caught:
        with naming_lost_peers(run, 1, ours):
            raise RuntimeError(GLOO)
    assert caught.value.exit_code == FAILED
