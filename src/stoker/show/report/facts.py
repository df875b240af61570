"""Everything that a report says about a run, read once.

Invariants: files are read, none is written. Nothing in the run directory, nor in the set that it
names, makes reading fail or wait: what cannot be read is None, and `notes` say why. No torch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stoker.data.dataset import Dataset
from stoker.data.index.shard_table import bytes_in
from stoker.errors import StokerError
from stoker.history.history import RunHistory
from stoker.history.kept_rows import KeptRows
from stoker.history.verdict import facts_and_verdict
from stoker.host.plain_file import read_plain
from stoker.measure.facts import Facts
from stoker.measure.verdict import Verdict
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.cost import RunCost, cost_of
from stoker.run.directory import Run
from stoker.run.evaluation import KeptEvaluation
from stoker.run.kinds import Event, is_number
from stoker.run.listing import OUTCOMES, RUNNING
from stoker.stores.client import StoreClient
from stoker.stores.location import location_of
from stoker.stores.objects import StoreError
from stoker.stores.settings import was_named
from stoker.survive.manifest import MARKER, names_in, read_manifest
from stoker.survive.remedies import Remedies
from stoker.text import one_line, shown

UNREADABLE = (
    *(StokerError, OSError, ValueError, LookupError, TypeError, RecursionError),
    *(ArithmeticError, AttributeError),
)
"""What damaged or foreign files raise."""
NO_RECORD: dict[str, Any] = {
    "recipe": "unknown",
    "values": {"model": "unknown model"},
    "data": "",
    "fingerprint": "",
    "classes": [],
    "lanes": 1,
    "changes": [],
}
"""What is said of a run whose run.json cannot be read."""
PATIENCE_S = 5.0
"""How long a store may fail before a report is made without the set."""
LARGEST_RECIPE, LARGEST_DESCRIPTION = 1 << 20, 1 << 28
Part = TypeVar("Part")
_SETTING = re.compile(r"(\w+) = (.*\S)\s+# (.*)")


@dataclass(frozen=True)
class SetFacts:
    """The packed set of a run, as far as it is still there."""

    path: str
    dataset: Dataset | None = None
    """None where it is gone, damaged, or another one by now."""
    problem: str = ""
    """Why there is none, in one sentence."""

    @property
    def images(self) -> dict[str, int]:
        """Images of each split."""
        splits = self.dataset.description["splits"] if self.dataset else {}
        return {name: self.dataset.images(name) for name in splits} if self.dataset else {}

    def bytes_of(self, split: str) -> int:
        """Bytes of the shards of a split."""
        splits = self.dataset.description["splits"] if self.dataset else {}
        return bytes_in(splits[split]) if split in splits else 0

    @property
    def image_bytes(self) -> float | None:
        """The mean stored bytes of a training image; None where unknown."""
        images = self.images.get("train", 0)
        return self.bytes_of("train") / images if images else None


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of the newest complete checkpoint."""

    name: str
    step: int
    is_best: bool
    sizes: Mapping[str, int]
    """Bytes of each file."""


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run."""

    run: Run
    history: RunHistory
    record: Mapping[str, Any]
    cost: RunCost
    data: SetFacts
    now: float
    facts: Facts | None = None
    verdict: Verdict | None = None
    evaluation: KeptEvaluation | None = None
    checkpoint: CheckpointFiles | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value of the current recipe comes from."""
    notes: tuple[str, ...] = ()
    """What could not be read, and what was noticed."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The current recipe."""
        values: Mapping[str, Any] = [self.record, *self.record["changes"]][-1]["values"]
        return values

    def number(self, name: str) -> float | None:
        """A number of the current recipe; None where it has none of this name."""
        value = self.values.get(name)
        return float(value) if value is not None and is_number(value) else None

    @property
    def start(self) -> Event | None:
        return self.history.start

    @property
    def state(self) -> str:
        """`running`, `stopped`, `finished`, `failed` or `new`. A run whose newest attempt has ended
        is not running, though the process that writes the report may still hold its lock."""
        end = self.history.end
        return OUTCOMES.get(end["outcome"], "failed") if end else self.history.state(self.now)

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    @property
    def samples(self) -> int:
        """Training images; 0 where unknown."""
        return int(self.start["samples"]) if self.start else 0

    @property
    def steps_planned(self) -> int:
        return int(self.start["steps"]) if self.start else 0

    @property
    def is_priced(self) -> bool:
        return bool(self.cost.prices)

    @property
    def machines(self) -> int:
        """Machines of the newest attempt."""
        start = self.start
        return max(-(-start["world"] // start["local_world"]), 1) if start else 1


def facts_of(run: Run, price: HourlyPrice | None = None, now: float | None = None) -> RunFacts:
    """Everything that a report says about a run. Never raises for what is in it."""
    notes: list[str] = []
    rows = known(lambda: KeptRows(run), None, notes)
    history = RunHistory(run, {})
    cost, measured = RunCost([], []), None
    if rows:
        history = known(rows.history, history, notes)
        cost = known(lambda: cost_of(rows, price), cost, notes)
        measured = known(lambda: facts_and_verdict(rows), None, notes)
    record: Mapping[str, Any] = known(lambda: history.record, NO_RECORD, notes)
    return RunFacts(
        run=run,
        history=history,
        record=record,
        cost=cost,
        data=set_facts(record),
        now=time.time() if now is None else now,
        facts=measured[0] if measured else None,
        verdict=measured[1] if measured else None,
        evaluation=known(run.evaluation, None, notes),
        checkpoint=newest_checkpoint(run.path),
        origins=origins_of(run.path, len(record["changes"])),
        notes=(*dict.fromkeys(notes), *remedies_of(run.path), *run.damage.notes(run.path)),
    )


def known(read: Callable[[], Part], otherwise: Part, notes: list[str]) -> Part:
    """What a function reads; where it cannot, what stands for it, with a note that says why."""
    try:
        return read()
    except UNREADABLE as error:
        notes.append(one_line(str(error)) or type(error).__name__)
        return otherwise


def remedies_of(run_path: Path) -> list[str]:
    """The remedies that were taken, or why they cannot be read."""
    try:
        return [one_line(remedy.text()) for remedy in Remedies(run_path).taken]
    except UNREADABLE as error:
        return [one_line(str(error))]


def set_facts(record: Mapping[str, Any]) -> SetFacts:
    """The set that a run was trained on."""
    path = record["data"]
    try:
        if not was_named(path):
            return SetFacts(
                path,
                problem=f"The set at {shown(path)} was not asked, because the run alone names "
                "that place: evaluate the run with it as DATA first.",
            )
        if not path or not 0 < description_bytes(path) <= LARGEST_DESCRIPTION:
            return SetFacts(path, problem=f"The set is no longer at {shown(path) or 'its place'}.")
        dataset = Dataset(path)
    except UNREADABLE as error:
        return SetFacts(path, problem=f"The set cannot be read: {one_line(str(error))}.")
    if dataset.fingerprint != record["fingerprint"]:
        problem = f"{shown(path)} holds other images than those that the run was trained on."
        return SetFacts(path, problem=problem)
    return SetFacts(path, dataset)


def description_bytes(path: str) -> int:
    """The size of the description of a set; 0 where there is none. Raises StoreError soon where a
    store does not answer, and for a web server, which the file of a run alone does not make known.
    """
    if location := location_of(path):
        if location.is_web:
            raise StoreError("a report reads nothing from web servers")
        entry = StoreClient(location, patience_s=PATIENCE_S).find("dataset.json")
        return entry.bytes if entry else 0
    file = Path(path) / "dataset.json"
    return file.stat().st_size if file.is_file() else 0


def newest_checkpoint(run_path: Path) -> CheckpointFiles | None:
    """The newest checkpoint whose files are all there; None where there is none."""
    try:
        names = names_in(run_path / "checkpoints")
    except OSError:
        return None
    for name in names:
        folder = run_path / "checkpoints" / name
        own = [folder / "manifest.json", folder / MARKER]
        try:
            manifest = read_manifest(folder)
            sizes = {file: int(facts["bytes"]) for file, facts in manifest["files"].items()}
            sizes |= {file.name: file.stat().st_size for file in own}
        except UNREADABLE:
            continue
        is_best = manifest.get("is_best") is True
        return CheckpointFiles(name, int(manifest.get("step", 0)), is_best, sizes)
    return None


def origins_of(run_path: Path, changes: int) -> dict[str, str]:
    """Where each value of the current recipe comes from, as its file says."""
    name = f"recipe-{changes + 1}.toml" if changes else "recipe.toml"
    try:
        text = read_plain(run_path / name, LARGEST_RECIPE).decode(errors="replace")
    except (OSError, ValueError):
        return {}
    settings = (_SETTING.fullmatch(line) for line in text.splitlines())
    return {setting[1]: setting[3] for setting in settings if setting}
