"""The run directory: the one interface to everything that a run writes.

    run.json                      data set, recipe, and every accepted change of the recipe
    recipe.toml                   the resolved recipe, each value with its origin
    attempts/0001/rank0.jsonl     events, append-only, one file per attempt and rank
    attempts/0001/rank0.summary.jsonl     the same in few rows, see run/summaries.py
    checkpoints/000001234/        see survive/checkpoint.py
    last, best                    names of checkpoints
    evaluation.json               the last evaluation, class by class
    lock, .lock/                  who trains it, see locks/lock.py
    report.html                   what `stoker report` wrote last

Invariants: events are only appended. Readers merge attempts: an attempt that resumed at step s
replaces everything from step s on, so each step has exactly one value. A torn last line, left by a
killed writer, is ignored; other damage in events is passed over and counted in `damage`. One
process at a time trains a run: the one that holds the lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from stoker.commit import write_bytes, write_json
from stoker.errors import BadRequest, StokerError, is_readable
from stoker.host.plain_file import read_plain
from stoker.locks.lock import is_held
from stoker.recipe.changes import Change, changes, require_consent
from stoker.recipe.recipe import Recipe
from stoker.run.evaluation import KeptEvaluation, read_evaluation
from stoker.run.events import EventDamage, read_events
from stoker.run.kinds import RECORD, Event, misfit
from stoker.run.rows import NEVER
from stoker.run.storage import LOCK, Place, RunLock, refused
from stoker.run.summaries import RowReader
from stoker.text import one_line, plural, shown

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

FORMAT = 1
"""Format number of a run directory. A run.json without one has format 1."""
REPORT = "report.html"
"""The name of a report in its run directory."""


class DatasetIdentity(Protocol):
    """What a run records of its data set."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def classes(self) -> list[str]: ...


def class_difference(before: list[str], now: list[str]) -> str:
    """The end of an error message: which classes were removed and added. Empty where none were."""
    names_before, names_now = set(before), set(now)
    removed = [name for name in before if name not in names_now]
    added = [name for name in now if name not in names_before]
    parts = [
        f"{change}: {', '.join(map(shown, names[:5]))}{' ...' if len(names) > 5 else ''}"
        for change, names in (("removed", removed), ("added", added))
        if names
    ]
    return f"; this set has {plural(len(now), 'class')} ({'; '.join(parts)})" if parts else ""


class Run:
    """A run directory, of a run that is under way or finished."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damage = EventDamage()
        """What was damaged in the events that were read."""
        self._lock: RunLock | None = None
        self._place = Place(self.path)
        self.taken_over: Callable[[], str] = lambda: ""
        """Returns why this process may no longer train the run, where that is decided elsewhere."""

    def hold(self) -> None:
        """Note which directory this is: from here on, `require_place` compares."""
        self._place.hold()

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to the directory that `hold` noted, and is ours to train."""
        lost = self.taken_over() or (self._lock.lost() if self._lock else "")
        return self._place.is_held and not lost

    def require_place(self) -> None:
        """Raise StokerError where the directory was moved, removed or replaced since `hold`, or
        where another process has taken the run over."""
        if reason := self.taken_over():
            raise StokerError(reason)
        if self._lock:
            self._lock.require()
        if not self._place.is_held:
            raise StokerError(self._place.lost())

    @property
    def record(self) -> dict[str, Any]:
        """What is in run.json. Raises BadRequest if it is missing, damaged or newer."""
        file = self.path / "run.json"
        if not self.exists:
            raise BadRequest(f"{self.path} is not a run (no run.json)")
        try:
            record: dict[str, Any] = json.loads(read_plain(file).decode())
            if not isinstance(record, dict):
                raise ValueError("it is not a JSON object")
            number = record.get("format", 1)
            if not is_readable(self.path, number, FORMAT):
                raise ValueError(f"its format is {number!r}")
            if name := misfit(record, RECORD):
                raise ValueError(f"its '{name}' is {'wrong' if name in record else 'missing'}")
        except (OSError, ValueError, RecursionError) as error:
            raise BadRequest(
                f"{file} is damaged ({one_line(str(error))}): put back a copy of it, or train "
                "again with another --run"
            ) from error
        return record

    @property
    def exists(self) -> bool:
        return os.access(self.path / "run.json", os.F_OK)

    def create(self, record: dict[str, Any], recipe_toml: str) -> None:
        """Write the first files of a run. Does nothing where the run exists."""
        if self.exists:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_bytes(self.path / "recipe.toml", recipe_toml.encode())
            write_json(self.path / "run.json", record)
        except OSError as error:
            raise refused(self.path, error) from error

    @property
    def values(self) -> dict[str, Any]:
        """The values of the current recipe: the first one, or the newest accepted change."""
        record = self.record
        return cast(dict[str, Any], [record, *record["changes"]][-1]["values"])

    @property
    def start(self) -> dict[str, Any]:
        """What is on record about the weights that the run began with; empty for random ones."""
        start = self.record.get("start") if self.exists else None
        return start if isinstance(start, dict) else {}

    @property
    def masks(self) -> dict[str, Any]:
        """What is on record about the masks of a pruned run: their digest, and the step from which
        on they hold; empty for other runs."""
        return dict(self.record.get("masks", {})) if self.exists else {}

    def recipe_changes(
        self, recipe: Recipe, dataset: DatasetIdentity, allowed: Collection[str] = ()
    ) -> list[Change]:
        """How a recipe differs from the current one. Raises BadRequest where it cannot resume."""
        record = self.record
        if record["fingerprint"] != dataset.fingerprint:
            raise BadRequest(
                f"{self.path} was trained on other images ({record['data']})"
                f"{class_difference(record['classes'], dataset.classes)}: name another --run"
            )
        differences = changes(self.values, recipe.values())
        require_consent(str(self.path), differences, allowed, lambda: self.has_trained)
        return differences

    def change_recipe(self, recipe: Recipe, recipe_toml: str, position: int, step: int) -> None:
        """Record that a recipe applies from this position on. Earlier recipes stay on record."""
        record = self.record
        start = {"position": position, "step": step}
        record["changes"].append({**start, "values": recipe.values(), "digest": recipe.digest()})
        name = f"recipe-{len(record['changes']) + 1}.toml"
        write_bytes(self.path / name, recipe_toml.encode())
        write_json(self.path / "run.json", record)

    def recipe_start(self) -> tuple[int, int]:
        """Position and step from which the current recipe applies."""
        changed = self.record["changes"] if self.exists else []
        return (changed[-1]["position"], changed[-1]["step"]) if changed else (0, 0)

    def lock(self, patience_s: float = 10.0) -> None:
        """Take the lock until this process ends. Raises RunInUse, which names another holder."""
        self._lock = RunLock(self.path, patience_s)

    @property
    def is_running(self) -> bool:
        """Whether a process on this machine holds the lock; on any where leases are used."""
        return is_held(self.path, LOCK)

    @property
    def holds_lock(self) -> bool:
        """Whether this process has the lock."""
        return self._lock is not None

    def unlock(self) -> None:
        if self._lock:
            self._lock.release()
            self._lock = None

    def attempts(self) -> list[int]:
        folder = self.path / "attempts"
        names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def new_attempt(self) -> int:
        self.require_place()
        number = max(self.attempts(), default=0) + 1
        try:
            self.attempt_path(number).mkdir(parents=True)
        except (FileExistsError, NotADirectoryError) as error:
            folder = self.path / "attempts"
            raise BadRequest(f"{folder} is not a folder: move that file away") from error
        except OSError as error:
            raise refused(self.path / "attempts", error) from error
        return number

    def attempt_path(self, number: int) -> Path:
        return self.path / "attempts" / f"{number:04d}"

    def events_path(self, attempt: int, rank: int) -> Path:
        return self.attempt_path(attempt) / f"rank{rank}.jsonl"

    def ranks(self, attempt: int) -> list[int]:
        """The ranks that wrote events in an attempt."""
        files = self.attempt_path(attempt).glob("rank*.jsonl")
        numbers = (file.stem.removeprefix("rank") for file in files)
        return sorted(int(number) for number in numbers if number.isdecimal())

    def attempt_events(self, attempt: int, rank: int = 0) -> Iterator[Event]:
        """The events of one attempt and rank, in the order they were written."""
        return read_events(self.events_path(attempt, rank), self.damage)

    def start_of(self, attempt: int) -> Event | None:
        """The `attempt` event of rank 0; None where the attempt ended before writing it."""
        return next((e for e in self.attempt_events(attempt) if e["kind"] == "attempt"), None)

    def start_position(self, attempt: int) -> int | None:
        """Where an attempt began to train; None where it did not."""
        events = self.attempt_events(attempt)
        # The first event with a position is `attempt`, or a step if `attempt` is damaged.
        return next((event["position"] for event in events if "position" in event), None)

    def starts(self) -> list[Event]:
        """The `attempt` event of each attempt that wrote one, with the attempt's number."""
        numbers = self.attempts()
        return [{"attempt": n, **start} for n in numbers if (start := self.start_of(n))]

    def attempt_rows(self, attempt: int, rank: int = 0, cut: int = NEVER) -> Iterator[Event]:
        """The events of one attempt and rank, with the steps and probes of about ten seconds in one
        row each, see run/rows.py. No row crosses the position `cut`. Far quicker than all events:
        most of it is read from the summary."""
        return RowReader(self.events_path(attempt, rank), self.damage).read(cut)

    def lost_from(self) -> dict[int, int]:
        """For each attempt the position from which on a later one repeated its steps."""
        positions: dict[int, int] = {}
        earliest = NEVER
        for attempt in reversed(self.attempts()):
            positions[attempt] = earliest
            start = self.start_position(attempt)
            earliest = earliest if start is None else min(earliest, start)
        return positions

    def events(self, rank: int = 0) -> Iterator[Event]:
        """All events of all attempts, each with its attempt's number, not merged."""
        for attempt in self.attempts():
            for event in self.attempt_events(attempt, rank):
                yield {**event, "attempt": attempt}

    def rows(self, rank: int = 0) -> Iterator[Event]:
        """All rows and other events of all attempts, each with its attempt's number. Rows of steps
        that a later attempt repeated are `redone`."""
        lost_from = self.lost_from()
        for attempt in self.attempts():
            cut = lost_from[attempt]
            for row in self.attempt_rows(attempt, rank, cut):
                is_redone = {"redone": row["position"] >= cut} if row["kind"] == "steps" else {}
                yield {**row, "attempt": attempt, **is_redone}

    def step_rows(self, rank: int = 0) -> list[Event]:
        """The rows of the steps that an uninterrupted run would have made."""
        return [row for row in self.rows(rank) if row["kind"] == "steps" and not row["redone"]]

    @property
    def steps_made(self) -> int:
        """How many steps the run has made so far."""
        return max((row["last"] + 1 for row in self.step_rows()), default=0)

    @property
    def has_trained(self) -> bool:
        """Whether a step was made: it is on record or in a checkpoint, or the run was pruned."""
        saved = (item.name.lstrip("0")[:1] for item in (self.path / "checkpoints").glob("[0-9]*"))
        return bool(self.masks) or any(map(str.isdecimal, saved)) or self.steps_made > 0

    def merged(self, kind: str, rank: int = 0) -> list[Event]:
        """The events of a kind that an uninterrupted run would have written, one per position."""
        read = self.attempt_events if kind == "step" else self.attempt_rows
        kept: dict[int, Event] = {}
        # Rank 0 exists in every attempt; this rank may not.
        for attempt, lost_from in self.lost_from().items():
            # An event at the start of a later attempt was written before it; a step comes after it.
            limit = lost_from - (kind == "step")
            own = (event for event in read(attempt, rank) if event["kind"] == kind)
            own_kept = {e["position"]: {**e, "attempt": attempt} for e in own}
            kept = {p: e for p, e in own_kept.items() if p <= limit} | kept
        return [kept[position] for position in sorted(kept)]

    def steps(self) -> list[Event]:
        """One event per step: rank 0's, with `images` and `sums` summed over all ranks."""
        totals: dict[int, Event] = {}
        for rank in sorted({rank for attempt in self.attempts() for rank in self.ranks(attempt)}):
            for event in self.merged("step", rank):
                total = totals.setdefault(event["step"], {**event, "images": 0, "sums": [0.0] * 3})
                total["images"] += event["images"]
                total["sums"] = [a + b for a, b in zip(total["sums"], event["sums"], strict=True)]
        return [totals[step] for step in sorted(totals)]

    def frame(self, kind: str = "steps") -> pandas.DataFrame:
        """A pandas DataFrame, see run/frames.py for its columns: a row for each step that counts;
        with "evaluation" for each evaluation, with "rows" for about ten seconds of steps, which is
        quick for a long run. Raises BadRequest where pandas is not installed.

            frame = stoker.Run("runs/mine").frame()
            frame.plot(x="epoch", y=["loss", "top1"])
        """
        from stoker.run.frames import frame_of

        evaluations = partial(self.merged, "evaluation")
        sources: dict[str, Callable[[], list[Event]]]
        sources = {"steps": self.steps, "evaluation": evaluations, "rows": self.step_rows}
        return frame_of(kind, sources)

    def end(self) -> Event | None:
        """The `end` event of the latest attempt; None while it runs, or where it was killed."""
        latest = {e["kind"]: e for last in self.attempts()[-1:] for e in self.attempt_rows(last)}
        return latest.get("end")

    @property
    def finished(self) -> bool:
        end = self.end()
        return end is not None and end["outcome"] == "finished"

    def evaluation(self) -> KeptEvaluation | None:
        """The last evaluation, class by class; None where the run has kept none. Raises BadRequest
        where it is damaged or newer."""
        return read_evaluation(self.path)
