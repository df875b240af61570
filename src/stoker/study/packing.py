"""Packing as a grid: cells that write a share of the shards each, and one that finishes the set.

Invariant: the cells name the request by its hash, so a source that has changed is another plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.options import PackOptions
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import ShardReport
from stoker.data.packing.shares import SharedPack
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import Grid, own_digest
from stoker.study.frozen import COMMAND
from stoker.survive.stopping import StopRequest, stops_at_once

SHARES_PER_TASK = 4
"""Cells for each task of an array: what a killed node loses is one of them at most."""
KEPT = "finished shards are kept"


def plan_packing(shared: SharedPack, tasks: int) -> Plan:
    """The cells of a pack, after claiming its target. Raises BadRequest."""
    request, shards = shared.prepare()
    target = shared.job.target
    shares = min(shards, SHARES_PER_TASK * tasks)
    meaning = {
        "source": str(Path(shared.source).absolute()),
        "out": target.out if target.is_stored else str(target.work.absolute()),
        "storage": asdict(shared.job.storage),
        "options": {**asdict(shared.job.options), "columns": dict(shared.job.options.columns)},
        "request": request,
        "shares": shares,
    }
    plan, sources = Plan(), own_digest()
    parts = [
        plan.add(
            Cell(
                f"share {number + 1} of {shares}",
                COMMAND,
                {"do": "pack", "share": number, **meaning},
                (),
                sources,
            )
        )
        for number in range(shares)
    ]
    plan.add(Cell("the set", COMMAND, {"do": "finish_pack", **meaning}, tuple(parts), sources))
    return plan


@dataclass
class ShareSum:
    """The sum of the reports of some shards."""

    images: int = 0
    rejected: int = 0
    shrunk: int = 0
    largest: tuple[int, int] = (0, 0)

    def add(self, report: ShardReport) -> None:
        self.images += report.images
        self.rejected += report.rejected
        self.shrunk += report.shrunk
        self.largest = max(self.largest, report.largest, key=math.prod)


def pack_cell(folder: Path, meaning: Mapping[str, Any], stop: StopRequest) -> dict[str, Any]:
    """Write the shards of a share; returns their sum. Raises Interrupted if told to stop."""
    total = ShareSum()
    with stops_at_once(stop, "packing", KEPT):
        shared_of(meaning).write(meaning["request"], meaning["share"], meaning["shares"], total.add)
    return asdict(total)


def finish_pack_cell(folder: Path, meaning: Mapping[str, Any], stop: StopRequest) -> dict[str, Any]:
    """Finish the set; returns its fingerprint. Raises Interrupted if told to stop."""
    shared = shared_of(meaning)
    with stops_at_once(stop, "packing", KEPT):
        pack(meaning["source"], meaning["out"], storage=shared.job.storage, **meaning["options"])
    return {"fingerprint": Dataset(meaning["out"]).fingerprint}


def shared_of(meaning: Mapping[str, Any]) -> SharedPack:
    return SharedPack.of(
        meaning["source"],
        meaning["out"],
        Storage(**meaning["storage"]),
        PackOptions.of(meaning["options"]),
    )


def shrunk_in(grid: Grid, plan: Plan) -> tuple[int, tuple[int, int]]:
    """How many images of a finished pack were shrunk, and the largest of their sources."""
    total = ShareSum()
    for cell in plan.cells.values():
        if cell.meaning["do"] == "pack":
            width, height = grid.result(cell.id)["largest"]
            total.shrunk += grid.result(cell.id)["shrunk"]
            total.largest = max(total.largest, (width, height), key=math.prod)
    return total.shrunk, total.largest
