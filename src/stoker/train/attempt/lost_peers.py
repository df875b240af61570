"""Who is lost when ranks can no longer talk to each other.

Invariants: a rank that loses its peers says so in its events before it looks for the others' words:
whoever has said nothing a moment later is the one that is gone.
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
from stoker.run.events import Event, Events

A_MOMENT_S = 1.0
SAID = ("peer_lost", "end")


@contextmanager
def naming_lost_peers(
    run: Run, attempt: int | None = None, events: Events | None = None
) -> Iterator[None]:
    """Turn a broken collective into words about who is gone."""
    try:
        yield
    except RuntimeError as error:
        if not is_broken_collective(error):
            raise
        elastic = ELASTIC in os.environ
        if attempt is None or events is None:
            kind = PeerLost if elastic else StokerError
            raise kind("a rank was lost before this attempt had begun") from error
        events.write("peer_lost", reason=str(error).splitlines()[0])
        events.flush()
        time.sleep(A_MOMENT_S)
        told = told_to_stop(run, attempt)
        if told and not elastic:
            raise Interrupted(f"{told}: the same command goes on") from error
        raise (PeerLost if elastic else StokerError)(told or lost_words(run, attempt)) from error


def is_broken_collective(error: RuntimeError) -> bool:
    """gloo raises plain errors that name its source; everything else has a type."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def told_to_stop(run: Run, attempt: int) -> str:
    """Which ranks of an attempt have left, and why, where they could not wait for the others."""
    told = []
    for rank in run.ranks(attempt):
        ends = [e for e in run.attempt_events(attempt, rank) if e["kind"] == "end"]
        told += [f"rank {rank}: {e['reason']}" for e in ends if e.get("outcome") == "interrupted"]
    return ", ".join(told)


def rank_and_host(rank: int, events: list[Event]) -> str:
    """A rank by its number and, where its events came so far, its machine."""
    hosts = [e["environment"]["host"] for e in events if e["kind"] == "attempt"]
    return f"rank {rank}" + "".join(f" on {host}" for host in hosts)


def lost_words(run: Run, attempt: int) -> str:
    """Which ranks of an attempt went without a word, and where they ran."""
    lost = []
    for rank in run.ranks(attempt):
        events = list(run.attempt_events(attempt, rank))
        failed = [e["reason"] for e in events if e.get("outcome") in ("failed", "refused")]
        if failed and not any(event["kind"] == "peer_lost" for event in events):
            return f"rank {rank} failed: {failed[0]}"
        if not any(event["kind"] in SAID for event in events):
            lost.append(rank_and_host(rank, events))
    if not lost:
        return "ranks lost the connection to each other; all of them are alive"
    return f"lost {', '.join(lost)}: what was saved before is safe"
