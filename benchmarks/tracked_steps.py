"""The median step of training with a tracker beside it whose sink hangs, refuses or dies.

    python benchmarks/tracked_steps.py SET [--repeats 5] [--steps 120]

SET is a packed set. Runs without a tracker and with each kind of sink take turns, so that a slow
minute meets all of them. The tracker looks every second, five times as often as it does by itself.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from stoker.run.directory import Run

TESTS = Path(__file__).parents[1] / "tests"
TRACKER = """
import sys
import fake_sinks
from stoker.track import process
own = process.SinkProcess.__init__
source = getattr(fake_sinks, sys.argv[1])
process.SinkProcess.__init__ = lambda self, sink, options, command=(): own(
    self, sink, options, fake_sinks.program(source)
)
from stoker.cli import main
sys.exit(main(sys.argv[2:]))
"""
SINKS = ("", "HANGS", "REFUSES", "DIES")


def steps_of(data: str, folder: Path, sink: str, steps: int) -> tuple[list[float], float]:
    """Seconds of each step but the first ones, and the CPU seconds of the tracker."""
    run = folder / "run"
    words = ["--run", str(run), "--model", "resnet9_w16", "--image-size", "32"]
    words += ["--batch-size", "64", "--epochs", "1", "--no-rehearse", "--no-report"]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    tracker = None
    if sink:
        command = [sys.executable, "-c", TRACKER, sink, "track", str(run), "--to", "csv"]
        command += ["--out", str(folder / "out"), "--every", "1", "--patience", "1"]
        tracker = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    command = [sys.executable, "-m", "stoker", "train", data, *words]
    subprocess.run(command, check=True, capture_output=True)
    used = 0.0
    if tracker:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        tracker.wait(120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    events = [event for event in Run(run).attempt_events(1) if event["kind"] == "step"]
    return [sum(event["parts"].values()) for event in events[20 : 20 + steps]], used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120)
    parsed = parser.parse_args()
    medians: dict[str, list[float]] = {sink: [] for sink in SINKS}
    cpu: dict[str, list[float]] = {sink: [] for sink in SINKS}
    for _ in range(parsed.repeats):
        for sink in SINKS:
            with tempfile.TemporaryDirectory() as folder:
                seconds, used = steps_of(parsed.data, Path(folder), sink, parsed.steps)
            medians[sink].append(statistics.median(seconds) * 1000)
            cpu[sink].append(used)
    for sink, values in medians.items():
        name = f"tracker whose sink {sink.lower()}" if sink else "no tracker"
        spread = f"{min(values):.1f} to {max(values):.1f}"
        print(
            f"{name:<30} median step {statistics.median(values):6.1f} ms ({spread}), "
            f"CPU of the tracker {statistics.median(cpu[sink]):.2f} s"
        )


if __name__ == "__main__":
    main()
