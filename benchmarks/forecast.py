"""The throughput that `stoker doctor` expects against the throughput of `stoker train`.

    python benchmarks/forecast.py --photos FOLDER-or-TAR --small FOLDER-or-TAR [--rounds 3]

Three recipes: one limited by loading, one limited by the model, one in between. In each round
doctor and training run one after the other, each in a separate process. The throughput of training
is the median over groups of five steps from the run's events, without the first steps, evaluation
and checkpoints. A round in which other programs used the cores is marked. Compare by the other
rounds, or by the ratio of CPU time, best on one core (taskset -c 0), where threads cannot wait for
each other.
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
"""Steps at the start that are left out, and steps of a group."""
QUIET = 0.1
"""Largest share of the cores that other programs may use in an undisturbed round."""
POLL_S = 0.03


@dataclass(frozen=True)
class Case:
    """A recipe, and the set that it trains on."""

    name: str
    photos: bool
    flags: tuple[str, ...]
    steps: int

    @property
    def batch(self) -> int:
        return int(self.flags[self.flags.index("--batch-size") + 1])


def case(name: str, photos: bool, model: str, size: int, batch: int, steps: int) -> Case:
    flags = ("--model", model, "--image-size", str(size), "--batch-size", str(batch))
    return Case(name, photos, flags, steps)


CASES = (
    case("data-bound", True, "resnet9_w1", 32, 64, 150),
    case("in between", True, "resnet9_w4", 64, 64, 100),
    case("compute-bound", False, "resnet18", 64, 32, 60),
)


class Others:
    """Cores that processes other than ours and our children use, between two readings."""

    def __init__(self) -> None:
        self._before = self._read()

    def _read(self) -> tuple[float, float]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        unit = os.sysconf("SC_CLK_TCK")
        own = os.times()
        ours = own.user + own.system + own.children_user + own.children_system
        return (sum(ticks) - ticks[3] - ticks[4]) / unit - ours, sum(ticks) / unit

    def cores(self) -> float:
        now = self._read()
        used, passed = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        return max(used / max(passed, 1e-9), 0.0) * (os.cpu_count() or 1)


@dataclass(frozen=True)
class Pace:
    """Images per second and per CPU-second."""

    images_per_s: float
    images_per_cpu_s: float
    from_parts: float = 0.0


def stoker(
    command: Sequence[str], folder: Path, enough: Callable[[int], bool] = lambda process: False
) -> None:
    """Run a command; terminate it once `enough`, called with its process number, returns True."""
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *command], cwd=folder, stdout=output, stderr=output
        )
        terminated = False
        while process.poll() is None:
            if not terminated and enough(process.pid):
                process.terminate()
                terminated = True
            time.sleep(POLL_S)
        if process.returncode not in (FINISHED, *([INTERRUPTED] if terminated else [])):
            output.seek(0)
            raise SystemExit(f"stoker {' '.join(command)}: {output.read()}")


def expected(packed: Path, chosen: Case, folder: Path) -> Pace:
    """The throughput that doctor expects."""
    stoker(["doctor", str(packed), *chosen.flags, "--json", "doctor.json"], folder)
    report = json.loads((folder / "doctor.json").read_text())
    forecast, cost = report["forecast"], report["together"]["cost"]
    parts = forecast["from_parts_images_per_s"]
    return Pace(forecast["images_per_s"], chosen.batch / cost["cpu_s"], parts)


class CpuOfSteps:
    """CPU seconds of a training process at the steps that its events contain."""

    def __init__(self, events: Path, steps: int) -> None:
        self._events, self._steps, self._size = events, steps, 0
        self.marks: list[tuple[int, float]] = []

    def __call__(self, process: int) -> bool:
        """Record the CPU time; returns whether the run has made enough steps."""
        with suppress(OSError, IndexError):
            if self._events.stat().st_size == self._size:
                return False
            self._size = self._events.stat().st_size
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


def measured(packed: Path, chosen: Case, folder: Path, number: int) -> Pace:
    """The throughput of training."""
    samples = len(Dataset(packed).split("train"))
    epochs = max(-(-chosen.steps * chosen.batch // samples), 1)
    run = folder / f"run-{chosen.name.replace(' ', '-')}-{number}"
    plain = ("--eval-every", str(epochs), "--no-rehearse", "--spot-notice", "off")
    limit = ("--epochs", str(epochs), "--checkpoint-interval", "600", "--lr", "0.001")
    watch = CpuOfSteps(Run(run).events_path(1, 0), chosen.steps)
    command = ["train", str(packed), *chosen.flags, *plain, *limit, "--run", str(run)]
    stoker(command, folder, watch)
    times = [
        sum(seconds for part, seconds in event["parts"].items() if part not in APART)
        for event in Run(run).merged("step")
    ][FIRST:]
    groups = [sum(times[at : at + GROUP]) for at in range(0, len(times) - GROUP + 1, GROUP)]
    cpu_s = watch.a_step(len(times) + FIRST)
    return Pace(GROUP * chosen.batch / statistics.median(groups), chosen.batch / cpu_s)


def measure(chosen: Case, packed: Path, folder: Path, rounds: int) -> None:
    print(f"\n{chosen.name}: {' '.join(chosen.flags)}", flush=True)
    ratios: list[tuple[float, float, float, bool]] = []
    others = Others()
    for number in range(rounds):
        doctor = expected(packed, chosen, folder)
        training = measured(packed, chosen, folder, number)
        other_cores = others.cores()
        quiet = other_cores < QUIET * usable_cores()
        wall, parts = (p / training.images_per_s for p in (doctor.images_per_s, doctor.from_parts))
        cpu = doctor.images_per_cpu_s / training.images_per_cpu_s
        ratios.append((wall, parts, cpu, quiet))
        print(
            f"  round {number + 1}: doctor {doctor.images_per_s:,.0f}, from the parts "
            f"{doctor.from_parts:,.0f}, training {training.images_per_s:,.0f} images/s: {wall:.3f} "
            f"({parts:.3f}); per CPU-second {doctor.images_per_cpu_s:,.0f} and "
            f"{training.images_per_cpu_s:,.0f}: {cpu:.3f}; "
            f"others used {other_cores:.2f} cores{'' if quiet else ' (disturbed)'}",
            flush=True,
        )
    for name, rows in (("all", ratios), ("quiet", [row for row in ratios if row[3]])):
        if rows:
            wall, parts, cpu = (statistics.median(row[at] for row in rows) for at in (0, 1, 2))
            print(
                f"  median of {len(rows)} {name} rounds: {wall:.3f} (from the parts {parts:.3f}), "
                f"CPU time {cpu:.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path, required=True, help="large photographs")
    parser.add_argument("--small", type=Path, required=True, help="images of about 64 px")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=[chosen.name for chosen in CASES], help="only this one")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root, packed = Path(name), {}
        for photos, source in ((True, flags.photos), (False, flags.small)):
            if Dataset.is_packed(source):
                packed[photos] = source.resolve()
                continue
            folder = class_folder(source, root) if photos else source.resolve()
            target = root / ("photos" if photos else "small")
            packed[photos] = pack(folder, target, storage=Storage(max_side=500))
        for chosen in CASES:
            if flags.case in (None, chosen.name):
                measure(chosen, packed[chosen.photos], root, flags.rounds)


if __name__ == "__main__":
    main()
