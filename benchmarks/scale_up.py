"""The product at sizes that do not fit into this machine, from its own order, lanes and cache.

    python benchmarks/scale_up.py table [--images 1281167,100e6,5.8e9] [--hosts 1,8,100,1000]
    python benchmarks/scale_up.py caches [--images 1281167] [--hosts 1,8]
    python benchmarks/scale_up.py check

`table`: for each number of images and of hosts what one host reads of the index and of the shards,
the memory it needs, the time to its first batch, and what lost machines cost; money only where
prices are given. `caches`: the size of the cache against what is fetched again. `check`: three real
runs here against predictions made before them by the same code; it ends with 1 where one is off by
more than 15 %. Takes about 5 minutes each.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.scale import caches, checks, shuffle, shuffle_training, table
from benchmarks.scale.table import Terms
from benchmarks.scale.world import World


def whole_numbers(text: str) -> list[int]:
    return [int(float(part)) for part in text.split(",")]


def add_terms(parser: argparse.ArgumentParser, images: str, hosts: str) -> None:
    parser.add_argument("--images", type=whole_numbers, default=whole_numbers(images))
    parser.add_argument("--hosts", type=whole_numbers, default=whole_numbers(hosts))
    parser.add_argument("--image-kb", type=float, default=110.0, help="of a stored image")
    parser.add_argument("--shard-mb", type=float, help="of a shard [what 'stoker pack' makes]")
    parser.add_argument("--batch", type=int, default=256, help="images of a host in a batch")
    parser.add_argument("--cache-gb", type=float, default=1000.0, help="of a host")
    parser.add_argument("--link-gbit", type=float, default=10.0, help="of a host to the store")
    parser.add_argument("--latency-ms", type=float, default=30.0, help="of an answer")
    parser.add_argument("--images-per-s", type=float, default=2000.0, help="that a host trains")
    parser.add_argument("--losses-per-host-day", type=float, default=0.01)
    parser.add_argument("--save-s", type=float, default=2.0, help="that a save takes")
    parser.add_argument("--restart-s", type=float, default=180.0, help="from a loss to a step")
    parser.add_argument("--egress-usd-gb", type=float, help="price of a GB from the store")
    parser.add_argument("--get-usd-1000", type=float, help="price of a thousand requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")


def make_table(flags: argparse.Namespace) -> int:
    cells = table.cells_of(flags.images, flags.hosts, Terms.of(flags))
    print(table.printed(cells))
    if flags.json:
        flags.json.write_text(json.dumps(table.plain(cells), indent=1) + "\n")
    return 0


def make_caches(flags: argparse.Namespace) -> int:
    terms = Terms.of(flags)
    rows = []
    for images in flags.images:
        world = World.of(images, terms.image_bytes, terms.shard_images, terms.seed)
        rows += caches.rows_of(world, flags.hosts, terms)
    print(caches.markdown(rows))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    of_table = commands.add_parser("table")
    add_terms(of_table, "1281167,100e6,5.8e9", "1,8,100,1000")
    of_table.set_defaults(call=make_table)
    of_caches = commands.add_parser("caches")
    add_terms(of_caches, "1281167", "1,8")
    of_caches.set_defaults(call=make_caches)
    of_check = commands.add_parser("check")
    checks.add_flags(of_check)
    of_check.set_defaults(call=checks.run)
    of_shuffle = commands.add_parser("shuffle")
    shuffle.add_flags(of_shuffle)
    of_shuffle.set_defaults(call=shuffle.run)
    of_training = commands.add_parser("shuffled-training")
    shuffle_training.add_flags(of_training)
    of_training.set_defaults(call=shuffle_training.run)
    flags = parser.parse_args()
    return int(flags.call(flags))


if __name__ == "__main__":
    sys.exit(main())
