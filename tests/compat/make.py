"""Writes what the tests of this folder compare with.

    python tests/compat/make.py FOLDER      packed sets and run directories of today's format
    python tests/compat/make.py --parted FOLDER     a packed set with its index in partitions
    python tests/compat/make.py --pins      pins.json: bytes, bits and events of today's code

The data of a format that has been released is never written again and never edited: it is what
users have on their disks. A new format gets a folder of its own beside it (data/2, ...), written
with the code that introduces the format. Pins are written again only where a change of the bytes,
bits or events is intended; the commit says why.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.trainers import Trainers
from compat.kept import (
    CODECS,
    FINISHED,
    INTERRUPTED,
    PINNED,
    PINS,
    Kept,
    bits_of,
    versions,
)
from parted_sets import parted
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.errors import FINISHED as DONE
from stoker.errors import INTERRUPTED as STOPPED
from stoker.run.directory import Run

NEUTRAL = {"platform": "Linux", "host": "host", "device": "CPU", "command": ["stoker", "train"]}
"""What stands in the kept events for what names a machine."""
CUT_SHORT: dict[str, dict[str, Any]] = {
    "jpeg": {"fault": "term", "at": "backward", "rank": 0, "step": 30},
    "raw": {"fault": "kill", "at": "prune:folder", "rank": 0, "count": 2},
}
"""One is asked to stop and saves; the other is killed while it saves."""


def make_sets(folder: Path) -> None:
    """Pack 48 training and 12 validation images in each codec."""
    with tempfile.TemporaryDirectory() as place:
        photos = image_folder(Path(place) / "photos", images=16, val=4, size=(24, 20))
        for codec in CODECS:
            out = folder / f"packed-{codec}"
            pack(photos, out, storage=Storage(codec=codec), shard_images=20, workers=1)
            for cache in out.glob(".*"):
                shutil.rmtree(cache) if cache.is_dir() else cache.unlink()


def make_parted(out: Path) -> None:
    """Pack the images of `make_sets` with an index in partitions."""
    assert not out.exists(), f"{out} exists: data of a released format is never rewritten"
    with tempfile.TemporaryDirectory() as place, parted():
        photos = image_folder(Path(place) / "photos", images=16, val=4, size=(24, 20))
        pack(photos, out, storage=Storage(codec="jpeg"), shard_images=20, workers=1)
        for cache in out.glob(".*"):
            cache.unlink()


def make_run(trainers: Trainers, kept: Kept, folder: Path, log: Path) -> Run:
    """A run as today's code leaves it."""
    run = folder / kept.name
    faults = [] if kept.finished else [CUT_SHORT[kept.codec]]
    codes = trainers.train(kept.argv(run), log, ranks=kept.ranks, faults=faults)
    wanted = DONE if kept.finished else {"jpeg": STOPPED, "raw": -9}[kept.codec]
    assert codes[0] == wanted, (kept, codes, log.read_text()[-2000:])
    return Run(run)


def strip(run: Run, codec: str) -> None:
    """Remove what names a machine: the data's path, hosts, processes, commands, the lock."""
    (run.path / "lock").unlink()
    record = json.loads((run.path / "run.json").read_bytes())
    record["data"] = f"packed-{codec}"
    (run.path / "run.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for path in run.path.glob("attempts/*/rank*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for event in events:
            if "environment" in event:
                event["environment"] |= {**NEUTRAL, "process": 1}
        path.write_text("".join(json.dumps(event) + "\n" for event in events))


def make_data(folder: Path) -> None:
    """The packed sets, the runs, and what the interrupted ones come to when resumed."""
    assert not folder.exists(), f"{folder} exists: data of a released format is never rewritten"
    make_sets(folder)
    trainers = Trainers(PINNED)
    expected: dict[str, Any] = {"versions": versions(), "bits": {}}
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        for kept in [*INTERRUPTED, FINISHED]:
            run = make_run(trainers, kept, folder, log)
            strip(run, kept.codec)
            copy = Run(shutil.copytree(run.path, Path(place) / kept.name))
            codes = trainers.train(kept.argv(copy.path), log, ranks=kept.ranks)
            assert codes == [DONE] * kept.ranks, log.read_text()[-2000:]
            expected["bits"][kept.name] = bits_of(copy)
    trainers.close()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--pins"]:
        from compat.pins import all_pins

        PINS.write_text(json.dumps(all_pins(), indent=1, sort_keys=True) + "\n")
    elif sys.argv[1:2] == ["--parted"]:
        make_parted(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        make_data(Path(sys.argv[1]))
    else:
        sys.exit(__doc__)
