"""Our loader against others, each in an environment of its own: images per CPU-second.

    python benchmarks/loader.py IMAGES [--rounds 7] [--peers a,b] [--variants a,b] [--json FILE]
    python benchmarks/loader.py IMAGES --cold        our loader alone, from disk and from memory
    python benchmarks/loader.py --quick              a minute's trial on synthetic images

IMAGES is a folder of photographs, or a tar of them. Every peer reads the very same stored bytes,
uses as many threads or workers as there are cores, and gives batches of the same shape. Rounds take
turns; a ratio is made within a round. Peers are listed in `peers/peers.toml`, variants in
`compare/sets.py`; a peer that cannot be installed or fails is a row with its reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare import cold
from compare.environments import TABLE
from compare.report import machine, machine_line, raw, table, versions
from compare.rounds import Row, take_turns
from compare.sets import RAW_EPOCHS, RAW_IMAGES, VARIANTS, Variant, class_folder, stored, synthetic
from peers.protocol import Job
from stoker.host.limits import usable_cores

BATCH = 250
QUICK = {
    "variants": ["500-training", "raw-32"],
    "peers": ["reference", "bare", "copy", "stoker"],
    "images": 100,
    "batch": 50,
}


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def names(given: str, known: dict[str, Any], what: str) -> list[str]:
    chosen = [name for name in given.split(",") if name]
    for name in chosen:
        if name not in known:
            raise SystemExit(f"no {what} is called '{name}': take some of {', '.join(known)}")
    return [name for name in known if name in chosen] or list(known)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path, nargs="?", help="folder or tar of photographs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", default="", help=", ".join(TABLE["peers"]))
    parser.add_argument("--variants", default="", help=", ".join(VARIANTS))
    parser.add_argument("--environments", type=Path, default=Path(".benchmark-environments"))
    parser.add_argument("--json", type=Path, help="where the raw rounds go")
    parser.add_argument("--cold", action="store_true", help="our loader from disk and from memory")
    parser.add_argument("--quick", action="store_true", help="a short trial, nothing installed")
    given = parser.parse_args()
    if given.images is None and not given.quick:
        parser.error("name a folder or tar of photographs, or --quick")
    given.peers = names(given.peers, TABLE["peers"], "peer")
    given.variants = names(given.variants, VARIANTS, "variant")
    given.batch, given.raw_images = BATCH, RAW_IMAGES
    if given.quick:
        given.peers, given.variants = QUICK["peers"], QUICK["variants"]
        given.rounds, given.batch, given.raw_images = 1, QUICK["batch"], 500
        given.environments = None
    return given


def compare(variant: Variant, folder: Path, place: Path, given: argparse.Namespace) -> list[Row]:
    """All peers that can read a variant's set, measured in turns."""
    have = stored(variant, folder, place, given.raw_images)
    rows = [Row(name) for name in given.peers if variant.kind in TABLE["peers"][name]["kinds"]]
    with tempfile.TemporaryDirectory(dir=place) as own:
        jobs = {
            row.name: Job(
                files=str(have.files),
                packed=str(have.packed),
                place=f"{own}/{row.name}",
                training=variant.training,
                batch=min(given.batch, have.images),
                size=variant.size,
                cores=usable_cores(),
                epochs=RAW_EPOCHS[variant.size] if variant.raw else 1,
                shows=tuple(TABLE["peers"][row.name]["shows"]),
            )
            for row in rows
        }
        take_turns(rows, jobs, given.rounds, given.environments, say)
    return rows


def main() -> None:
    given = arguments()
    found: dict[str, Any] = {"machine": machine(), "batch": given.batch, "variants": {}}
    print(machine_line(found["machine"]) + "\n", flush=True)
    every: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        images = given.images or synthetic(place / "synthetic", QUICK["images"])
        folder = class_folder(images, place)
        if given.cold:
            found["cold"] = cold.measure(folder, place, given.rounds, say)
            print("\n".join(cold.table(found["cold"])))
        for chosen in [] if given.cold else given.variants:
            say(f"== {chosen}")
            variant = VARIANTS[chosen]
            rows = compare(variant, folder, place, given)
            every += rows
            found["variants"][chosen] = raw(variant, rows)
            print("\n".join(table(variant, rows)), flush=True)
        if every:
            print("\n".join(versions(every)))
        if given.json:
            given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
