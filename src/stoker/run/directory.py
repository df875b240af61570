"""The run directory: the one door to everything a run leaves behind.

    run.json                      what is trained on what, and every change that was agreed on
    recipe.toml                   the resolved recipe, each value with its origin
    attempts/0001/rank0.jsonl     events, append-only, a file an attempt and rank
    checkpoints/000001234/        see survive/checkpoint.py
    last, best                    names of checkpoints

Invariants: events are only ever appended. Readers merge attempts: an attempt that resumed at step
s replaces everything from step s on, so that each step has exactly one value. A torn last line
(the writer was killed) is passed over. One process at a time trains a run: it holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Protocol, cast

from stoker.commit import UNABLE, open_at_end, write_bytes, write_json
from stoker.errors import BadRequest, StokerError, is_readable
from stoker.recipe.changes import Change, changes, refuse_unwanted
from stoker.recipe.recipe import Recipe
from stoker.run.events import Event, is_event

FORMAT = 1
"""Of a run directory. Absent from run.json: 1."""


class Described(Protocol):
    """A set of images, as far as a run must know it."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def classes(self) -> list[str]: ...


def class_difference(before: list[str], now: list[str]) -> str:
    """Which classes came and went, in a few words."""
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    parts = [
        f"{what} {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        for what, names in (("without", gone), ("with new", new))
        if names
    ]
    return f"; the set has now {len(now)} classes, {', '.join(parts)}" if parts else ""


class Run:
    """A run directory, being written or long finished."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: IO[bytes] | None = None

    @property
    def record(self) -> dict[str, Any]:
        """What the run was started with. Raises BadRequest where there is no run or a newer version
        wrote it, StokerError where run.json is damaged."""
        file = self.path / "run.json"
        try:
            record: dict[str, Any] = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadRequest(f"{self.path} is not a run (no run.json)") from error
        except ValueError as error:
            raise StokerError(f"{file} is damaged: {error}") from error
        if not isinstance(record, dict):
            raise StokerError(f"{file} is damaged: not a record of a run")
        number = record.get("format", 1)
        if not is_readable(self.path, number, FORMAT):
            raise StokerError(f"{file} is damaged: its format is {number!r}")
        return record

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").is_file()

    def create(self, record: dict[str, Any], recipe_toml: str) -> None:
        """Begin a run; nothing happens if it has begun before."""
        if self.exists:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        write_bytes(self.path / "recipe.toml", recipe_toml.encode())
        write_json(self.path / "run.json", record)

    @property
    def values(self) -> dict[str, Any]:
        """The recipe in force: the first one, or what was agreed on since."""
        record = self.record
        newest: dict[str, Any] = record["changes"][-1] if record["changes"] else record
        return cast(dict[str, Any], newest["values"])

    def compare(
        self, recipe: Recipe, dataset: Described, allowed: Collection[str] = ()
    ) -> list[Change]:
        """How a recipe differs from the one in force; refuses what nobody agreed to, and other
        images."""
        record = self.record
        if record["fingerprint"] != dataset.fingerprint:
            raise BadRequest(
                f"{self.path} was trained on other images ({record['data']})"
                f"{class_difference(record['classes'], dataset.classes)}: name another --run"
            )
        found = changes(self.values, recipe.values())
        refuse_unwanted(str(self.path), found, allowed)
        return found

    def take_over(self, recipe: Recipe, recipe_toml: str, position: int, step: int) -> None:
        """Another recipe is in force from here on; the earlier ones stay on record."""
        record = self.record
        values = {"values": recipe.values(), "digest": recipe.digest()}
        record["changes"].append({"position": position, "step": step, **values})
        name = f"recipe-{len(record['changes']) + 1}.toml"
        write_bytes(self.path / name, recipe_toml.encode())
        write_json(self.path / "run.json", record)

    def base(self) -> tuple[int, int]:
        """Position and step at which the recipe in force took over."""
        changed = self.record["changes"] if self.exists else []
        newest = changed[-1] if changed else {"position": 0, "step": 0}
        return newest["position"], newest["step"]

    def lock(self, patience_s: float = 10.0) -> None:
        """Become the one that trains this run, or say who is. The kernel lets go at any death."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = open_at_end(self.path / "lock")
        give_up = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > give_up:
                    file.seek(0)
                    holder = file.read().decode(errors="replace").strip()
                    raise BadRequest(
                        f"{self.path} is being trained by {holder}: "
                        "stop that first, or name another --run"
                    ) from error
                time.sleep(0.1)
            except OSError as error:
                if error.errno not in (*UNABLE, errno.ENOLCK):
                    raise
                break  # a mount without locks: who trains here is the user's care
        file.truncate(0)
        file.seek(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        self._lock = file

    @property
    def is_running(self) -> bool:
        """Whether a process of this machine is training the run now."""
        try:
            with (self.path / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def unlock(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def attempts(self) -> list[int]:
        folder = self.path / "attempts"
        names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def new_attempt(self) -> int:
        number = max(self.attempts(), default=0) + 1
        self.attempt_path(number).mkdir(parents=True)
        return number

    def attempt_path(self, number: int) -> Path:
        return self.path / "attempts" / f"{number:04d}"

    def events_path(self, attempt: int, rank: int) -> Path:
        return self.attempt_path(attempt) / f"rank{rank}.jsonl"

    def ranks(self, attempt: int) -> list[int]:
        """Ranks that left events in an attempt."""
        files = self.attempt_path(attempt).glob("rank*.jsonl")
        numbers = (file.stem.removeprefix("rank") for file in files)
        return sorted(int(number) for number in numbers if number.isdecimal())

    def attempt_events(self, attempt: int, rank: int = 0) -> Iterator[Event]:
        """The events of one attempt and rank as they were written."""
        try:
            with self.events_path(attempt, rank).open(encoding="utf-8") as file:
                for line in file:
                    try:
                        event = json.loads(line)
                    except ValueError:
                        continue
                    if is_event(event):
                        yield event
        except FileNotFoundError:
            return

    def start_of(self, attempt: int) -> Event | None:
        """The event with which rank 0 began an attempt; None if it never came so far."""
        return next((e for e in self.attempt_events(attempt) if e["kind"] == "attempt"), None)

    def starts(self) -> list[Event]:
        """How each attempt began."""
        found = (self.start_of(attempt) for attempt in self.attempts())
        return [start for start in found if start is not None]

    def events(self, rank: int = 0) -> Iterator[Event]:
        """All events of all attempts, each with its attempt's number; nothing merged."""
        for attempt in self.attempts():
            for event in self.attempt_events(attempt, rank):
                yield {"attempt": attempt, **event}

    def merged(self, kind: str, rank: int = 0) -> list[Event]:
        """Events of a kind as one run without interruptions would have left them."""
        kept: dict[int, Event] = {}
        for attempt in self.attempts():
            # Rank 0 speaks for all: an attempt may have fewer ranks than the one before.
            start = self.start_of(attempt)
            if start is None:
                continue
            # What stands at the very position was done before it; a step begins there.
            limit = start["position"] - (kind == "step")
            kept = {place: old for place, old in kept.items() if place <= limit}
            for event in self.attempt_events(attempt, rank):
                if event["kind"] == kind:
                    kept[event["position"]] = {"attempt": attempt, **event}
        return [kept[place] for place in sorted(kept)]

    def steps(self) -> list[Event]:
        """One event a step: rank 0's, with loss and accuracy taken over all ranks."""
        total: dict[int, Event] = {}
        for rank in sorted({rank for attempt in self.attempts() for rank in self.ranks(attempt)}):
            for event in self.merged("step", rank):
                whole = total.setdefault(event["step"], {**event, "images": 0, "sums": [0.0] * 3})
                whole["images"] += event["images"]
                whole["sums"] = [a + b for a, b in zip(whole["sums"], event["sums"], strict=True)]
        return [total[step] for step in sorted(total)]

    def end(self) -> Event | None:
        """How the latest attempt ended; None while it runs, or where it was killed."""
        attempts = self.attempts()
        last = None
        for event in self.attempt_events(attempts[-1]) if attempts else ():
            if event["kind"] == "end":
                last = event
        return last

    @property
    def finished(self) -> bool:
        end = self.end()
        return end is not None and end["outcome"] == "finished"
