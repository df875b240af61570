"""What the machines of one run tell each other through its store: their events and their remedies.

Invariants: a machine uploads the events of its own ranks. A remedy that a rank chose alone is an
object of its own until the machine that leads has it on record. What arrives is checked: it may be
anyone's.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from stoker.run.kinds import event_of
from stoker.stores.objects import Missing, Objects, StoreError
from stoker.survive.manifest import is_count
from stoker.survive.remedies import Remedies, Remedy
from stoker.survive.remote.records import LARGEST_FILE, Segment, segments

FOLDER = "remedies"
MOST_BYTES, MOST_REMEDIES = 1 << 14, 100
KINDS = ("skip", "cut", "micro_batch")
POLL_S = 1.0


def await_events(
    objects: Objects,
    attempt: int,
    ranks: Collection[int],
    step: int,
    is_going: Callable[[float], bool],
) -> None:
    """Wait until the store has the events of these ranks up to a step. `is_going` is asked with the
    seconds so far. Raises StoreError where they have not come by then."""
    missing, began = set(ranks), time.monotonic()
    below = f"attempts/{attempt:04d}"
    while missing:
        chains = segments(objects, below)
        for rank in sorted(missing):
            if reaches(objects, chains.get(f"{below}/rank{rank}.jsonl", []), step):
                missing.discard(rank)
        if not missing:
            return
        if not is_going(time.monotonic() - began):
            raise StoreError(
                f"the events of rank {min(missing)} are not in {objects.location}: its machine "
                "does not reach the store"
            )
        time.sleep(POLL_S)


def reaches(objects: Objects, chain: list[Segment], step: int) -> bool:
    """Whether the events in some segments go as far as the step before this one."""
    for part in reversed(chain):
        try:
            data, _ = objects.read(part.key, LARGEST_FILE)
        except Missing:  # it has become a part of a longer one: at the next look
            return False
        events = [event_of(line) for line in data.splitlines(keepends=True)]
        steps = [int(e["step"]) for e in events if e and e["kind"] in ("attempt", "step")]
        if steps:
            return max(steps) >= step - 1
    return False


def propose(objects: Objects, remedy: Remedy) -> None:
    """Leave a remedy for the machine that leads. Raises StoreError."""
    data = json.dumps(asdict(remedy)).encode()
    objects.write(f"{FOLDER}/{secrets.token_hex(8)}.json", data)


def take_proposals(objects: Objects, run: Path) -> list[str]:
    """Put the remedies of other machines on record in a folder; returns their objects, which may be
    deleted once the record is in the store. Raises StoreError."""
    keys = [item.key for item in objects.list(FOLDER) if item.bytes <= MOST_BYTES]
    remedies = Remedies(run)
    for key in keys[:MOST_REMEDIES]:
        with suppress(Missing, ValueError, TypeError, RecursionError):
            data, _ = objects.read(key, MOST_BYTES)
            remedy = Remedy(**json.loads(data))
            if is_remedy(remedy) and remedy not in remedies.taken:
                remedies.take(remedy)
    return keys[:MOST_REMEDIES]


def is_remedy(remedy: Remedy) -> bool:
    numbers = (remedy.position, remedy.before, remedy.after)
    texts = (remedy.digest, remedy.trouble)
    is_right = remedy.kind in KINDS and all(map(is_count, numbers))
    return is_right and all(isinstance(text, str) for text in texts)
