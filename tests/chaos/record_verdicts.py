"""Record runs of the rows of verdicts.toml for unit/measure/test_verdict_recordings.py.

    python tests/chaos/record_verdicts.py [--runs 3] [--row "slow disk" ...]

Adds to tests/data/verdict_recordings; keeps every run that ends, whether its verdict is right or
not. Network rows need root and `ip`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.test_verdicts import Bench, NotJudged
from chaos.trainers import Trainers
from integration.namespaces import Cluster
from samples import image_folder
from stoker.data.packing.pack import pack
from verdict_recordings import FOLDER, Recording, append, recordings, slug, write_events
from verdict_rows import IMAGES, ROWS, Row

TICKS = os.sysconf("SC_CLK_TCK")
CALM_S, CALM_CORES, CALM_TRIES = 1.0, 0.15, 3
"""A run begins once others have used less than so many cores for so long, or after some tries."""


def commit() -> str:
    """The commit of the code that runs."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def busy_s() -> float:
    """Seconds for which the cores of this machine worked, or worked for other machines."""
    user, nice, system, _, _, irq, soft, steal = (
        int(word) for word in Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + soft + steal) / TICKS


def own_s() -> float:
    """CPU seconds of this process, the fork server, and the ranks that have ended."""
    seconds = 0.0
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for process in ("self", *children):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(int(ticks) for ticks in fields[11:15]) / TICKS
    return seconds


def wait_for_calm() -> None:
    """Wait until other processes leave the cores alone, but not for ever."""
    for _ in range(CALM_TRIES):
        busy = busy_s()
        time.sleep(CALM_S)
        if busy_s() - busy < CALM_S * CALM_CORES:
            return


def record(bench: Bench, row: Row, cluster: Cluster | None) -> None:
    """Run a row once and keep its events; raises NotJudged where the run does not end."""
    wait_for_calm()
    began, busy, own = time.monotonic(), busy_s(), own_s()
    run = bench.run(row, lambda: cluster)  # type: ignore[arg-type,return-value]
    others_s = busy_s() - busy - (own_s() - own)
    others = max(others_s / (time.monotonic() - began), 0.0)
    outcome = bench.judged(row, run)
    number = 1 + sum(recording.row == row.name for recording in recordings())
    file = f"{slug(row.name)}/{number}.jsonl.xz"
    write_events(run, FOLDER / file)
    today = date.today().isoformat()
    truth_s = float(f"{outcome.truth_s:.6g}")
    append(Recording(row.name, file, today, commit(), truth_s, others))
    right = "right" if outcome.names(row) else "WRONG"
    error = "" if outcome.error is None else f", {outcome.error:+.1%}"
    size = (FOLDER / file).stat().st_size
    print(f"  {file}: {right}{error}; {size} bytes; others {others:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--row", action="append", help="only rows of these names, in this order")
    options = parser.parse_args()
    # Stopped from outside, it still removes the machines that it made.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    by_name = {row.name: row for row in ROWS}
    rows = [by_name[name] for name in options.row or by_name]
    cluster = Cluster(2) if any(row.rate for row in rows) else None
    trainers = Trainers()
    memory = Path("/dev/shm")
    try:
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
            folder = image_folder(
                Path(place) / "photos", classes=4, images=IMAGES // 4, val=2, size=(160, 130)
            )
            bench = Bench(trainers, pack(folder, Path(place) / "packed", workers=1), Path(place))
            for row in rows * options.runs:
                began = time.monotonic()
                try:
                    record(bench, row, cluster)
                except NotJudged as error:
                    print(f"{row.name}: not judged: {error}", flush=True)
                print(f"  {time.monotonic() - began:.1f} s", flush=True)
    finally:
        trainers.close()
        if cluster:
            cluster.remove()


if __name__ == "__main__":
    main()
