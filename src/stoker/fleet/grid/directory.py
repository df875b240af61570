"""The folder of a grid.

    plans/DIGEST.jsonl          cells, frozen when they were planned; the name is the file's hash
    sources/DIGEST/stoker/      Stoker's own sources, by which the cells of a plan run
    cells/ID/cell.json          one cell, as it is planned
    cells/ID/log.txt            what its command printed
    cells/ID/work/              what its command keeps: it goes on from there after a kill
    cells/ID/draft.json         the result that the command wrote
    cells/ID/result.json        the result: the cell is done
    cells/ID/leases/            see locks/lease.py

Invariants: nothing that was planned changes: a plan and its sources are checked against their
digests before they are used. A result is committed once and never written again.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import stoker
from stoker.commit import sha256_file, sha256_json, sha256_of, sync
from stoker.errors import BadRequest
from stoker.fleet.grid.cell import ID, Cell, Plan
from stoker.locks.files import DiskFiles, parsed
from stoker.text import shown

DONE, FAILED, RUNNING, WAITING, BLOCKED = "done", "failed", "running", "waiting", "blocked"
DAMAGED = "damaged"
"""Of a cell that is done, whose result cannot be used."""
MOST_FAILURES = 2
"""A cell that has failed so often is not tried again by the same command."""
MOST_LOST = 20
"""So many workers may be lost with a cell before it counts as failed: it may be what kills them."""


@cache
def own_sources() -> dict[str, str]:
    """The hash of each file of this installation of Stoker that a command may use."""
    root = Path(stoker.__file__).parent
    files = [path for path in root.rglob("*") if path.suffix in (".py", ".toml")]
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in files}


def own_digest() -> str:
    """The digest of Stoker's own sources."""
    return digest_of(own_sources())


def digest_of(sources: Mapping[str, str]) -> str:
    """The digest of files, from their names and hashes."""
    return sha256_json(sorted(sources.items()))[:32]


class Grid:
    """A folder of cells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = DiskFiles(path)

    def cell_path(self, cell: str) -> Path:
        return self.path / "cells" / cell

    def freeze(self, plan: Plan) -> str:
        """Write a plan and the sources that it runs by; returns the plan's digest."""
        data = plan.to_bytes()
        digest = sha256_of(data)[:32]
        self._freeze_sources()
        self.files.create(f"plans/{digest}.jsonl", data, durable=True)
        return digest

    def plan(self, digest: str) -> Plan:
        """A plan that was frozen. Raises BadRequest where it is missing, damaged or changed."""
        file = self.path / "plans" / f"{digest}.jsonl"
        data = self.files.read(f"plans/{digest}.jsonl") if ID.fullmatch(digest) else None
        if data is None:
            raise BadRequest(f"{shown(str(file))} does not exist: start the grid's command again")
        if sha256_of(data)[:32] != digest:
            raise BadRequest(f"{shown(str(file))} was changed: start the grid's command again")
        try:
            return Plan.from_bytes(data)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{shown(str(file))} holds no plan ({error})") from error

    def _freeze_sources(self) -> None:
        target = self.path / "sources" / own_digest()
        if target.exists():
            return
        draft = target.with_name(f".{target.name}.{self.files.suffix}")
        root = Path(stoker.__file__).parent
        for name in own_sources():
            copy = draft / "stoker" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy)
        try:
            draft.rename(target)
        except OSError:
            shutil.rmtree(draft)
            if not target.exists():
                raise
        sync(target.parent)

    def sources(self, digest: str) -> Path:
        """The folder with the sources of a digest. Raises BadRequest where they are missing, were
        changed, or have anything beside them: Python would find it there first."""
        root = self.path / "sources" / digest
        hashes = {}
        for folder, folders, files in os.walk(root):
            others = [name for name in folders if (Path(folder) / name).is_symlink()]
            for name in [*files, *others]:
                path = Path(folder) / name
                is_plain = path.is_file() and not path.is_symlink()
                hashes[path.relative_to(root).as_posix()] = sha256_file(path) if is_plain else ""
        inside = {name.removeprefix("stoker/"): text for name, text in hashes.items()}
        is_alone = all(name.startswith("stoker/") for name in hashes)
        if not ID.fullmatch(digest) or not is_alone or digest_of(inside) != digest:
            raise BadRequest(
                f"{shown(str(root))} is missing or was changed: remove it, and start the grid's "
                "command again"
            )
        return root

    def result(self, cell: str) -> Any:
        """The committed result of a cell; None where there is none, or one that is not JSON."""
        return parsed(self.files.read(f"cells/{cell}/result.json"))

    def is_done(self, cell: str) -> bool:
        return (self.cell_path(cell) / "result.json").exists()

    def ends(self, cell: str) -> list[dict[str, Any]]:
        """How each lease of a cell ended, in order; `lost` for one whose worker vanished."""
        names = set(self.files.names(f"cells/{cell}/leases"))
        return [
            self._end(cell, name, f"{name}.end" in names, f"{name}.forgiven" in names)
            for name in sorted(name for name in names if name.isdecimal())
        ]

    def _end(self, cell: str, name: str, ended: bool, forgiven: bool) -> dict[str, Any]:
        end = parsed(self.files.read(f"cells/{cell}/leases/{name}.end")) if ended else None
        if not isinstance(end, dict):
            end = {}
        seconds = end.get("seconds")
        return {
            **end,
            "outcome": str(end.get("outcome", "lost")),
            "seconds": float(seconds) if isinstance(seconds, (int, float)) else 0.0,
            "lease": int(name),
            "forgiven": forgiven,
        }

    def failures(self, cell: str) -> list[dict[str, Any]]:
        """The ends that count against a cell, if there are too many; else none."""
        ends = self.ends(cell)
        if ends and "code" not in ends[-1]:
            ends.pop()  # it may still run
        since = max((n + 1 for n, end in enumerate(ends) if end["forgiven"]), default=0)
        counts = Counter(end["outcome"] for end in ends[since:])
        too_many = counts["failed"] >= MOST_FAILURES or counts["lost"] >= MOST_LOST
        return [end for end in ends[since:] if end["outcome"] in ("failed", "lost")] * too_many

    def forgive(self, cells: Collection[str]) -> None:
        """Let cells that have failed be tried again."""
        for cell in cells:
            for end in self.ends(cell)[-1:]:
                self.files.create(f"cells/{cell}/leases/{end['lease']:06d}.forgiven", b"")

    def status(self, plan: Plan) -> Status:
        """The state of each cell of a plan."""
        begun = set(self.files.names("cells"))
        states: dict[str, str] = {}
        for name in plan.cells:
            if name not in begun:
                states[name] = WAITING
            elif self.is_done(name):
                states[name] = DONE
            elif self.failures(name):
                states[name] = FAILED
            else:
                ends = self.ends(name)
                states[name] = RUNNING if ends and ends[-1]["outcome"] == "lost" else WAITING
        failed = [name for name, state in states.items() if state == FAILED]
        for name in plan.blocked_by(failed):
            states[name] = states[name] if states[name] in (DONE, FAILED) else BLOCKED
        others = {name for name in begun if ID.fullmatch(name)} - set(plan.cells)
        others = {name for name in others if self.is_done(name)}
        versions = {cell.sources for cell in plan.cells.values()}
        older = {name for name in others if self._sources_of(name) not in versions}
        return Status(states, sorted(others - older), sorted(older))

    def _sources_of(self, cell: str) -> str:
        """The digest of the sources that a cell ran by."""
        value = parsed(self.files.read(f"cells/{cell}/cell.json"))
        return str(value.get("sources")) if isinstance(value, dict) else ""


@dataclass(frozen=True)
class Status:
    """What has become of the cells of a plan."""

    states: dict[str, str]
    others: list[str]
    """Finished cells in the same folder that are not in the plan: they have other settings."""
    older: list[str]
    """Finished cells in the same folder that ran by another version of Stoker."""

    def count(self, state: str) -> int:
        return sum(each == state for each in self.states.values())

    @property
    def is_over(self) -> bool:
        """Whether no cell can run any more."""
        return all(state in (DONE, FAILED, BLOCKED, DAMAGED) for state in self.states.values())


def describe(cell: Cell) -> str:
    return f"{cell.label} ({cell.id[:8]})"
