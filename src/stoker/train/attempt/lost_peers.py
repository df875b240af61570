"""Which rank is lost when ranks can no longer reach each other.

Invariant: a rank that loses its peers first writes a `peer_lost` event and then reads the events of
the others. A rank that has written neither `peer_lost` nor `end` after WAIT_S is treated as lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from stoker.errors import Interrupted, PeerLost, StokerError
from stoker.fleet.launcher import ELASTIC
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.run.kinds import Event
from stoker.survive.remote.place import bound_location
from stoker.train.attempt.end import FAILED, INTERRUPTED, REFUSED

WAIT_S = 1.0


@contextmanager
def naming_lost_peers(
    run: Run, attempt: int | None = None, events: Events | None = None
) -> Iterator[None]:
    """Turn the error of a broken collective into one that names the lost ranks. Raises PeerLost in
    an elastic run; otherwise Interrupted if ranks were told to stop, or StokerError."""
    try:
        yield
    except RuntimeError as error:
        if not is_broken_collective(error):
            raise
        elastic = ELASTIC in os.environ
        kind = PeerLost if elastic else StokerError
        if attempt is None or events is None:
            # It may have been told to stop: if it has failed, its own exit code says so.
            before = "a rank was lost before this attempt began: the same command starts again"
            raise (PeerLost if elastic else Interrupted)(before) from error
        events.write("peer_lost", reason=str(error).splitlines()[0])
        events.flush()
        time.sleep(WAIT_S)
        stopped = stopped_ranks(run, attempt)
        if stopped and not elastic:
            raise Interrupted(f"{stopped}: the same command goes on") from error
        raise kind(stopped or lost_ranks_message(run, attempt)) from error


def is_broken_collective(error: RuntimeError) -> bool:
    """Whether a collective broke: gloo raises plain RuntimeErrors that name its source files."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def stopped_ranks(run: Run, attempt: int) -> str:
    """The ranks that were told to stop and left without the others, each with its reason."""
    return ", ".join(
        f"rank {rank}: {event['reason']}"
        for rank in run.ranks(attempt)
        for event in run.attempt_rows(attempt, rank)
        if event["kind"] == "end" and event["outcome"] == INTERRUPTED
    )


def rank_and_host(rank: int, events: list[Event]) -> str:
    """The number of a rank, and its machine if its events name it."""
    hosts = [e["environment"]["host"] for e in events if e["kind"] == "attempt"]
    return f"rank {rank}" + "".join(f" on {host}" for host in hosts if host)


def lost_ranks_message(run: Run, attempt: int) -> str:
    """A message that names the ranks without a `peer_lost` or `end` event, or one that failed."""
    lost = []
    for rank in run.ranks(attempt):
        events = list(run.attempt_rows(attempt, rank))
        kinds = {event["kind"] for event in events}
        ends = [event for event in events if event["kind"] == "end"]
        failed = [end["reason"] for end in ends if end["outcome"] in (FAILED, REFUSED)]
        if failed and "peer_lost" not in kinds:
            return f"rank {rank} failed: {failed[0]}"
        if not kinds & {"peer_lost", "end"}:
            lost.append(rank_and_host(rank, events))
    if not lost and bound_location(run.path):
        return "lost a rank on another machine: what was saved before is safe"
    if not lost:
        return "the ranks lost the connection to each other; all of them are alive"
    return f"lost {', '.join(lost)}: what was saved before is safe"
