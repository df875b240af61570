"""Listing a folder of very many files, as `stoker pack` does: seconds, memory, directory calls.

    python benchmarks/walk.py [--files 1000000] [--classes 1000] [--place FOLDER]

Makes a folder of empty files named as images, waits until its folders are old enough to be cached,
and lists them twice, each time in a separate process: the first start lists every folder and writes
a cache; the second reads the cache. Folder listings are counted by an audit hook and, where strace
is installed, by system calls.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = """
import json, resource, sys, time
listings = 0
def hook(event, arguments):
    global listings
    if event in ("os.scandir", "os.listdir"):
        listings += str(arguments[0]).startswith(sys.argv[1])
sys.addaudithook(hook)
from pathlib import Path
from stoker.data.packing.options import PackOptions
from stoker.data.packing.source import open_source
def rss_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
bare, before, listings = rss_mb(), time.perf_counter(), 0
source = open_source(sys.argv[1], Path(sys.argv[2]), PackOptions())
listed = time.perf_counter()
files = sum(len(split.images) for split in source.listing.splits.values())
peak_listed = rss_mb()
source.remember()
print(json.dumps({
    "files": files,
    "listing_s": round(listed - before, 2),
    "keeping_s": round(time.perf_counter() - listed, 2),
    "peak_mb": round(rss_mb()),
    "peak_listed_mb": round(peak_listed),
    "bare_mb": round(bare),
    "folder_listings": listings,
}))
"""


def make(root: Path, files: int, classes: int) -> float:
    began = time.perf_counter()
    per_class = -(-files // classes)
    for label in range(classes):
        folder = root / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(label * per_class, min((label + 1) * per_class, files)):
            (folder / f"n{label:08d}_{number:08d}.jpg").touch()
    return time.perf_counter() - began


def start(root: Path, cache: Path) -> dict[str, object]:
    """The figures of one start in a separate process."""
    command = [sys.executable, "-c", START, str(root), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


def directory_calls(root: Path, cache: Path) -> int | None:
    """System calls of one more start that list folders below the root; None without strace."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile("r") as log:
        strace = ["strace", "-f", "-y", "-e", "trace=getdents64", "-o", log.name]
        command = [*strace, sys.executable, "-c", START, str(root), str(cache)]
        subprocess.run(command, capture_output=True, check=True)
        return len(re.findall(rf"<{re.escape(str(root))}[/>]", log.read()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--place", default=None, help="where to make the folder [a temporary one]")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.place) as name:
        root, cache = Path(name).resolve() / "images", Path(name) / "walk.parquet"
        print(f"made in {make(root, flags.files, flags.classes):.0f} s", flush=True)
        time.sleep(4)  # folders that were changed very recently are not cached
        print("first start ", json.dumps(start(root, cache)), flush=True)
        print("kept        ", cache.stat().st_size if cache.exists() else None, "bytes")
        print("second start", json.dumps(start(root, cache)), flush=True)
        print("directory calls of another second start:", directory_calls(root, cache))


if __name__ == "__main__":
    main()
