"""The program of a cell: python -m stoker.study.cell

It reads `cell.json` in the folder that STOKER_CELL names, does what its meaning says, and writes
`draft.json`. Exit codes: 0 done, 75 stopped and resumable, 1 failed, 2 refused.

Invariant: a result depends on the meaning of the cell, its parents' results and the sources, on
nothing else: it holds no times, no paths and no names of machines.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker import faults
from stoker.commit import json_bytes, write_bytes
from stoker.errors import FINISHED, StokerError
from stoker.fleet.grid.worker import CELL
from stoker.host.threads import limit_spinning
from stoker.survive.stopping import StopRequest, listening
from stoker.text import say_error

Program = Callable[[Path, Mapping[str, Any], StopRequest], Any]
"""Returns the result of a cell, from its folder and its meaning. Raises Interrupted."""


def programs() -> dict[str, Program]:
    from stoker.study.halving import choose_cell
    from stoker.study.packing import finish_pack_cell, pack_cell
    from stoker.study.train_cell import go_on_cell, train_cell

    return {
        "train": train_cell,
        "go_on": go_on_cell,
        "choose": choose_cell,
        "pack": pack_cell,
        "finish_pack": finish_pack_cell,
    }


def run_cell(programs: Mapping[str, Program]) -> int:
    """Do what the cell of this process means, by one of some programs; returns the exit code."""
    limit_spinning()
    faults.arm()
    folder = Path(os.environ[CELL])
    with listening() as stop:
        try:
            meaning = json.loads((folder / "cell.json").read_bytes())["meaning"]
            result = programs[meaning["do"]](folder, meaning, stop)
        except StokerError as error:
            say_error(error.lines)
            return error.exit_code
        write_bytes(folder / "draft.json", json_bytes(result))
    return FINISHED


if __name__ == "__main__":
    sys.exit(run_cell(programs()))
