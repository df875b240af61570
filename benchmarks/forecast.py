"""What `stoker doctor` says that training will reach, against what `stoker train` reaches.

    python benchmarks/forecast.py --photos FOLDER-or-TAR --small FOLDER-or-TAR [--rounds 3]

Three recipes: one that waits for images, one in which the network binds, one in between. In each
round doctor and training take turns, each in a process of its own. The truth is the median pace of
groups of five steps from the run's own events, without the first steps, evaluation and checkpoints.
A round in which other programs used the cores is marked: judge by those that are not, or by the
ratio of CPU time, best with one core each (taskset -c 0), where threads cannot wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compare.sets import class_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.errors import FINISHED, INTERRUPTED
from stoker.host.limits import usable_cores
from stoker.measure.spans import APART
from stoker.run.directory import Run

FIRST, GROUP = 10, 5
"""Steps that are left out, and steps of a group."""
QUIET = 0.1
"""Cores that others may use in a round that counts, as a share."""
POLL_S = 0.03


@dataclass(frozen=True)
class Case:
    """A recipe, and the set that it is tried on."""

    name: str
    photos: bool
    words: tuple[str, ...]
    steps: int

    @property
    def batch(self) -> int:
        return int(self.words[self.words.index("--batch-size") + 1])


def case(name: str, photos: bool, model: str, size: int, batch: int, steps: int) -> Case:
    words = ("--model", model, "--image-size", str(size), "--batch-size", str(batch))
    return Case(name, photos, words, steps)


CASES = (
    case("data-bound", True, "resnet9_w1", 32, 64, 150),
    case("in between", True, "resnet9_w4", 64, 64, 100),
    case("compute-bound", False, "resnet18", 64, 32, 60),
)


class Others:
    """Cores that were used by anybody but our children, from one look to the next."""

    def __init__(self) -> None:
        self._before = self._look()

    def _look(self) -> tuple[float, float]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        unit = os.sysconf("SC_CLK_TCK")
        own = os.times()
        ours = own.user + own.system + own.children_user + own.children_system
        return (sum(ticks) - ticks[3] - ticks[4]) / unit - ours, sum(ticks) / unit

    def cores(self) -> float:
        now = self._look()
        used, passed = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        return max(used / max(passed, 1e-9), 0.0) * (os.cpu_count() or 1)


@dataclass(frozen=True)
class Pace:
    """Images a second, and for each second of a core."""

    images_per_s: float
    images_per_cpu_s: float
    from_parts: float = 0.0


def stoker(
    words: Sequence[str], place: Path, enough: Callable[[int], bool] = lambda process: False
) -> None:
    """Run a command; ask it to stop once `enough` says so of its process number."""
    with (place / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *words], cwd=place, stdout=said, stderr=said
        )
        asked = False
        while process.poll() is None:
            if not asked and enough(process.pid):
                process.terminate()
                asked = True
            time.sleep(POLL_S)
        if process.returncode not in (FINISHED, *([INTERRUPTED] if asked else [])):
            said.seek(0)
            raise SystemExit(f"stoker {' '.join(words)}: {said.read()}")


def predicted(packed: Path, chosen: Case, place: Path) -> Pace:
    """What doctor expects."""
    stoker(["doctor", str(packed), *chosen.words, "--json", "doctor.json"], place)
    found = json.loads((place / "doctor.json").read_text())
    said, cost = found["forecast"], found["together"]["cost"]
    parts = said["from_parts_images_per_s"]
    return Pace(said["images_per_s"], chosen.batch / cost["cpu_s"], parts)


class CpuOfSteps:
    """CPU seconds of a training process at the steps that it has put on record."""

    def __init__(self, events: Path, steps: int) -> None:
        self._events, self._steps, self._seen = events, steps, 0
        self.marks: list[tuple[int, float]] = []

    def __call__(self, process: int) -> bool:
        """Look; whether there are as many steps as were asked for."""
        with suppress(OSError, IndexError):
            if self._events.stat().st_size == self._seen:
                return False
            self._seen = self._events.stat().st_size
            steps = self._events.read_text().count('"kind": "step"')
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            self.marks.append((steps, used))
            return steps >= self._steps
        return False

    def a_step(self, end: int) -> float:
        """Between the first look after the start and the last before the end."""
        kept = [mark for mark in self.marks if FIRST <= mark[0] < end]
        if len(kept) < 2 or kept[-1][0] == kept[0][0]:
            return float("nan")
        return (kept[-1][1] - kept[0][1]) / (kept[-1][0] - kept[0][0])


def reached(packed: Path, chosen: Case, place: Path, number: int) -> Pace:
    """What training reaches."""
    samples = len(Dataset(packed).split("train"))
    epochs = max(-(-chosen.steps * chosen.batch // samples), 1)
    run = place / f"run-{chosen.name.replace(' ', '-')}-{number}"
    plain = ("--eval-every", str(epochs), "--no-rehearse", "--spot-notice", "off")
    limit = ("--epochs", str(epochs), "--checkpoint-interval", "600", "--lr", "0.001")
    watch = CpuOfSteps(Run(run).events_path(1, 0), chosen.steps)
    words = ["train", str(packed), *chosen.words, *plain, *limit, "--run", str(run)]
    stoker(words, place, watch)
    times = [
        sum(seconds for part, seconds in event["parts"].items() if part not in APART)
        for event in Run(run).merged("step")
    ][FIRST:]
    groups = [sum(times[at : at + GROUP]) for at in range(0, len(times) - GROUP + 1, GROUP)]
    cpu_s = watch.a_step(len(times) + FIRST)
    return Pace(GROUP * chosen.batch / statistics.median(groups), chosen.batch / cpu_s)


def measure(chosen: Case, packed: Path, place: Path, rounds: int) -> None:
    print(f"\n{chosen.name}: {' '.join(chosen.words)}", flush=True)
    ratios: list[tuple[float, float, float, bool]] = []
    others = Others()
    for number in range(rounds):
        said = predicted(packed, chosen, place)
        got = reached(packed, chosen, place, number)
        disturbed = others.cores()
        quiet = disturbed < QUIET * usable_cores()
        wall, parts = (p / got.images_per_s for p in (said.images_per_s, said.from_parts))
        cpu = said.images_per_cpu_s / got.images_per_cpu_s
        ratios.append((wall, parts, cpu, quiet))
        print(
            f"  round {number + 1}: doctor {said.images_per_s:,.0f}, from the parts "
            f"{said.from_parts:,.0f}, training {got.images_per_s:,.0f} images/s: {wall:.3f} "
            f"({parts:.3f}); for each second of a core {said.images_per_cpu_s:,.0f} and "
            f"{got.images_per_cpu_s:,.0f}: {cpu:.3f}; "
            f"others used {disturbed:.2f} cores{'' if quiet else ' (disturbed)'}",
            flush=True,
        )
    for name, kept in (("all", ratios), ("quiet", [row for row in ratios if row[3]])):
        if kept:
            wall, parts, cpu = (statistics.median(row[at] for row in kept) for at in (0, 1, 2))
            print(
                f"  median of {len(kept)} {name} rounds: {wall:.3f} (from the parts {parts:.3f}), "
                f"CPU time {cpu:.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path, required=True, help="large photographs")
    parser.add_argument("--small", type=Path, required=True, help="images of 64 px or so")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=[each.name for each in CASES], help="only this one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place, packed = Path(name), {}
        for photos, source in ((True, given.photos), (False, given.small)):
            if Dataset.is_packed(source):
                packed[photos] = source.resolve()
                continue
            folder = class_folder(source, place) if photos else source.resolve()
            target = place / ("photos" if photos else "small")
            packed[photos] = pack(folder, target, storage=Storage(max_side=500))
        for chosen in CASES:
            if given.case in (None, chosen.name):
                measure(chosen, packed[chosen.photos], place, given.rounds)


if __name__ == "__main__":
    main()
