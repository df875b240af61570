"""Our loader against others, each in its own environment: images per CPU-second.

    python benchmarks/loader.py IMAGES [--rounds 7] [--peers a,b] [--variants a,b] [--json FILE]
    python benchmarks/loader.py IMAGES --cold      our loader alone, from the disk and page cache
    python benchmarks/loader.py --quick            one minute on synthetic images

IMAGES is a folder of photographs, or a tar of them. Every peer reads the same stored bytes, uses as
many threads or workers as there are cores, and gives batches of the same shape. The rounds of the
peers alternate, and a ratio is computed within a round. Peers are listed in `peers/peers.toml`,
variants in `compare/sets.py`. A peer that cannot be installed or fails is a row with the reason.
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


def report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def names(value: str, known: dict[str, Any], kind: str) -> list[str]:
    """The known names in a flag's value; all of them where it is empty."""
    chosen = [name for name in value.split(",") if name]
    for name in chosen:
        if name not in known:
            raise SystemExit(f"no {kind} is called '{name}': use some of {', '.join(known)}")
    return [name for name in known if name in chosen] or list(known)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path, nargs="?", help="folder or tar of photographs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", default="", help=", ".join(TABLE["peers"]))
    parser.add_argument("--variants", default="", help=", ".join(VARIANTS))
    parser.add_argument("--environments", type=Path, default=Path(".benchmark-environments"))
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    parser.add_argument(
        "--cold", action="store_true", help="our loader alone, from the disk and the page cache"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round, nothing is installed"
    )
    flags = parser.parse_args()
    if flags.images is None and not flags.quick:
        parser.error("name a folder or tar of photographs, or --quick")
    flags.peers = names(flags.peers, TABLE["peers"], "peer")
    flags.variants = names(flags.variants, VARIANTS, "variant")
    flags.batch, flags.raw_images = BATCH, RAW_IMAGES
    if flags.quick:
        flags.peers, flags.variants = QUICK["peers"], QUICK["variants"]
        flags.rounds, flags.batch, flags.raw_images = 1, QUICK["batch"], 500
        flags.environments = None
    return flags


def compare(variant: Variant, folder: Path, root: Path, flags: argparse.Namespace) -> list[Row]:
    """Measure all peers that can read a variant's set, in alternating rounds."""
    files = stored(variant, folder, root, flags.raw_images)
    rows = [Row(name) for name in flags.peers if variant.kind in TABLE["peers"][name]["kinds"]]
    with tempfile.TemporaryDirectory(dir=root) as own:
        jobs = {
            row.name: Job(
                files=str(files.files),
                packed=str(files.packed),
                place=f"{own}/{row.name}",
                training=variant.training,
                batch=min(flags.batch, files.images),
                size=variant.size,
                cores=usable_cores(),
                epochs=RAW_EPOCHS[variant.size] if variant.raw else 1,
                shows=tuple(TABLE["peers"][row.name]["shows"]),
            )
            for row in rows
        }
        take_turns(rows, jobs, flags.rounds, flags.environments, report)
    return rows


def main() -> None:
    flags = arguments()
    results: dict[str, Any] = {"machine": machine(), "batch": flags.batch, "variants": {}}
    print(machine_line(results["machine"]) + "\n", flush=True)
    all_rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        images = flags.images or synthetic(root / "synthetic", QUICK["images"])
        folder = class_folder(images, root)
        if flags.cold:
            results["cold"] = cold.measure(folder, root, flags.rounds, report)
            print("\n".join(cold.table(results["cold"])))
        for chosen in [] if flags.cold else flags.variants:
            report(f"== {chosen}")
            variant = VARIANTS[chosen]
            rows = compare(variant, folder, root, flags)
            all_rows += rows
            results["variants"][chosen] = raw(variant, rows)
            print("\n".join(table(variant, rows)), flush=True)
        if all_rows:
            print("\n".join(versions(all_rows)))
        if flags.json:
            flags.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
