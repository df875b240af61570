"""The same photographs packed on this machine, by a SLURM array and on Spark, with a worker killed.

    python benchmarks/packing_engines.py N [--side PIXELS] [--shard-images N]

Makes N photographs (noise over gradients, 4:3, JPEG), starts a real SLURM and a real Spark on
loopback as the tests do, packs with two workers or tasks each, and prints a table. An engine that
cannot be started here is left out, with the reason. Seconds are those of the whole command, its
start included; CPU is that of every process which it or the engine started, looked at four times a
second. The bytes of every set are compared with those of the local one.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import simplejpeg

TESTS = Path(__file__).parents[1] / "tests"
MARK = "STOKER_BENCHMARK"
LOOK_S = 0.25
CLASSES = 10


def photographs(root: Path, count: int, side: int) -> Path:
    """A folder of classes with so many photographs of about `side` pixels in width."""
    for number in range(count):
        rng = np.random.default_rng(number)
        width = side + int(rng.integers(-side // 10, side // 10 + 1))
        height = width * 3 // 4
        across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
        slopes = rng.uniform(-120, 120, (3, 2))
        planes = [128 + a * (across - 0.5) + b * (down - 0.5) for a, b in slopes]
        pixels = np.stack(planes, axis=2) + rng.normal(0, 12, (height, width, 3))
        data = simplejpeg.encode_jpeg(np.clip(pixels, 0, 255).astype(np.uint8), quality=92)
        folder = root / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:07d}.jpg").write_bytes(data)
    return root


@dataclass
class CpuTime:
    """CPU seconds of all processes that carry the mark in their variables."""

    mark: str
    seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    """The last that was seen of each process, by its id and its start."""
    _known: dict[int, bool] = field(default_factory=dict)

    def look(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError, ValueError):
                if not self._is_marked(entry):
                    continue
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                key = int(entry.name), int(words[19])
                self.seconds[key] = (int(words[11]) + int(words[12])) / tick

    def _is_marked(self, entry: Path) -> bool:
        pid = int(entry.name)
        if pid not in self._known:
            variables = (entry / "environ").read_bytes().split(b"\0")
            self._known[pid] = f"{MARK}={self.mark}".encode() in variables
        return self._known[pid]


@contextmanager
def cpu_time(mark: str) -> Iterator[CpuTime]:
    """Counts in the background until the block ends."""
    counter, ended = CpuTime(mark), threading.Event()

    def count() -> None:
        while not ended.wait(LOOK_S):
            counter.look()

    counter.look()
    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield counter
    finally:
        ended.set()
        thread.join()
        counter.look()


@dataclass(frozen=True)
class Outcome:
    engine: str
    seconds: float
    cpu_s: float
    contents: dict[str, str]


@dataclass(frozen=True)
class Bench:
    """The photographs, and how they are packed."""

    root: Path
    source: Path
    images: int
    shard_images: int
    mark: str
    contents: Callable[[Path], dict[str, str]]

    def pack(
        self,
        engine: str,
        flags: list[str],
        variables: dict[str, str] | None = None,
        kill: Callable[[], None] | None = None,
    ) -> Outcome:
        """Pack by the command; `kill` is called once a third of the shards is there."""
        out = self.root / f"packed-{engine.replace(' ', '-').replace(',', '')}"
        command = [sys.executable, "-m", "stoker", "pack", str(self.source), str(out)]
        command += ["--shard-images", str(self.shard_images), "--spot-notice", "off", *flags]
        environment = {**os.environ, **(variables or {}), MARK: self.mark}
        before = CpuTime(self.mark)
        before.look()
        with cpu_time(self.mark) as counter:
            began = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            shards = self.images // self.shard_images
            while kill and process.poll() is None:
                if len(list((out / ".parts").glob("[!.]*.parquet"))) >= shards // 3:
                    kill()
                    kill = None
                time.sleep(0.05)
            printed, _ = process.communicate()
            seconds = time.perf_counter() - began
        if process.returncode or kill:
            raise SystemExit(f"{engine}: code {process.returncode}\n{printed}")
        started = {
            key: used - before.seconds.get(key, 0.0) for key, used in counter.seconds.items()
        }
        return Outcome(engine, seconds, sum(started.values()), self.contents(out))


def on_slurm(bench: Bench, slurm: ModuleType) -> Iterator[Outcome]:
    root = Path(tempfile.mkdtemp(prefix="stoker-slurm-"))
    root.chmod(0o711)
    cluster = slurm.SlurmCluster(root, nodes=2)
    cluster.variables[MARK] = bench.mark
    flags = ["--on", "slurm", "--tasks", "2", "--site", "/dev/null", "--time", "30", "--wait"]
    try:
        cluster.start()
        yield bench.pack("SLURM, 2 tasks", flags, cluster.variables)
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


def on_spark(bench: Bench, spark: ModuleType) -> Iterator[Outcome]:
    root = bench.root / "spark"
    root.mkdir()
    cluster = spark.StandaloneSpark(root)
    flags = ["--on", cluster.master, *spark.flags()]
    try:
        cluster.start()
        yield bench.pack("Spark, 2 workers", flags)
        yield bench.pack("Spark, one killed", flags, kill=lambda: cluster.kill_worker(1))
    finally:
        cluster.stop()


def table(bench: Bench, outcomes: list[Outcome]) -> list[str]:
    lines = ["| engine | s | img/s | CPU s | img/CPU s | bytes |", "|---|---|---|---|---|---|"]
    for each in outcomes:
        same = "identical" if each.contents == outcomes[0].contents else "DIFFERENT"
        rates = f"{bench.images / each.seconds:.0f} | {each.cpu_s:.0f}"
        lines.append(
            f"| {each.engine} | {each.seconds:.1f} | {rates} | "
            f"{bench.images / each.cpu_s:.0f} | {same} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=int)
    parser.add_argument("--side", type=int, default=100, metavar="PIXELS")
    parser.add_argument("--shard-images", type=int, default=200, metavar="N")
    flags = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    import packing
    import spark_cluster
    from cluster import slurm

    with tempfile.TemporaryDirectory() as name:
        root, mark = Path(name), secrets.token_hex(8)
        os.environ[MARK] = mark  # for the clusters, which inherit it
        source = photographs(root / "photographs", flags.images, flags.side)
        bench = Bench(root, source, flags.images, flags.shard_images, mark, packing.contents)
        outcomes = [bench.pack("local, 2 processes", ["--workers", "2"])]
        for engine, run in ((slurm, on_slurm), (spark_cluster, on_spark)):
            if reason := engine.missing():
                print(f"left out: {reason}")
                continue
            outcomes += run(bench, engine)
        print("\n".join(table(bench, outcomes)))


if __name__ == "__main__":
    main()
