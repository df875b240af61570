"""Run directories of any length, written as training writes them, in a moment and without a model.

python tests/made_runs.py FOLDER --steps 100000 --ranks 8
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any
from unittest import mock

from stoker.run.directory import Run
from stoker.run.evaluation import BINS, EvaluationReport, WorstSample, report_bytes, report_data
from stoker.run.events import Events

BEGAN = 1_790_000_000.0
"""When a made run begins, in seconds since 1970."""
CLASSES = [f"class {letter}" for letter in "abcdefgh"]
STARTING_S, PAUSE_S = 12.0, 240.0


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        return self.now


class RunMaker:
    """Makes one run: attempts that begin where they are told to, and end as they are told to."""

    def __init__(
        self,
        path: Path,
        *,
        steps: int = 1000,
        ranks: int = 1,
        batch: int = 256,
        step_s: float = 0.288,
        epochs: float = 10,
        dollars_per_h: float | None = 2.0,
        model: str = "resnet18",
        classes: list[str] | None = None,
        gpus: bool = False,
        seed: int = 0,
    ) -> None:
        self.run, self.total, self.ranks, self.batch = Run(path), steps, ranks, batch
        self.step_s, self.epochs, self.per_hour, self.gpus = step_s, epochs, dollars_per_h, gpus
        self.classes = CLASSES if classes is None else classes
        self.samples = max(round(steps * batch / epochs), 1)
        self.clock, self.chance = Clock(BEGAN), random.Random(seed)
        self.best, self._attempt, self._saved = -1.0, 0, 0
        values = {"model": model, "epochs": epochs, "batch_size": batch, "lr": 0.4}
        record = {
            "format": 1,
            "recipe": "made",
            "values": values,
            "data": "/sets/photos",
            "fingerprint": "f00d",
            "classes": self.classes,
            "lanes": 1,
            "changes": [],
        }
        text = "".join(f"{k} = {json.dumps(v)}  # from the recipe\n" for k, v in values.items())
        self.run.create(record, text)

    def attempt(self, first: int, until: int, outcome: str | None = "finished") -> RunMaker:
        """An attempt that makes the steps from `first` to `until`; without an outcome it is
        killed."""
        self._attempt += 1
        self.clock.now += PAUSE_S if self._attempt > 1 else 0.0
        with mock.patch("stoker.run.events.time", self.clock):
            self.run.attempt_path(self._attempt).mkdir(parents=True)
            began = self.clock.now
            files = [Events(self.run.events_path(self._attempt, r)) for r in range(self.ranks)]
            self._start(files, first)
            for step in range(first, until):
                self._step(files, step, began)
            if outcome:
                self._end(files, until, outcome)
            for events in files:
                events.flush() if outcome is None else events.close()
        return self

    def _start(self, files: list[Events], first: int) -> None:
        self.clock.now += STARTING_S
        spent = (self.clock.now - BEGAN) / 3600 * (self.per_hour or 0.0)
        price = {
            "dollars": self.per_hour,
            "kind": "stated",
            "source": "--price-per-hour",
            "date": "2026-11-01",
        }
        for rank, events in enumerate(files):
            money = {} if self.per_hour is None else {
                "price": price, "spent": round(spent, 4), "per_hour": self.per_hour,
            }  # fmt: skip
            events.write(
                "attempt",
                position=first * self.batch,
                step=first,
                rank=rank,
                world=self.ranks,
                local_world=self.ranks,
                local_rank=rank,
                steps=self.total,
                samples=self.samples,
                classes=len(self.classes),
                epochs=self.epochs,
                startup_s=STARTING_S,
                loading_threads=2,
                derived=f"global batch {self.batch} = {self.ranks} ranks",
                environment={"host": "made", "device": "a GPU", "threads": 2, "cores": 8},
                **money,
            )

    def _step(self, files: list[Events], step: int, began: float) -> None:
        share = step / self.total
        before = self.clock.now
        self.clock.now += self.step_s * self.chance.uniform(0.9, 1.1)
        for rank, events in enumerate(files):
            seconds = self.step_s * self.chance.uniform(0.9, 1.1)
            self._write_step(events, rank, step, share, seconds)
            if int(before / 5) != int(self.clock.now / 5):
                events.write("probe", step=step, **self._probe())
        if step and step % max(self.total // 20, 1) == 0:
            self._evaluate(files[0], step)
        if step and step % max(self.total // 25, 1) == 0:
            self._save(files[0], step)

    def _write_step(
        self, events: Events, rank: int, step: int, share: float, seconds: float
    ) -> None:
        images = self.batch // self.ranks
        loss = math.log(len(self.classes)) * math.exp(-2 * share) + self.chance.gauss(0, 0.05)
        hits = min(max(0.1 + 0.8 * share, 0.0), 1.0) * images
        parts = {
            "read": 0.01 * seconds,
            "decode": 0.09 * seconds,
            "to_device": 0.01 * seconds,
            "forward": 0.28 * seconds,
            "backward": 0.5 * seconds,
            "exchange": 0.05 * seconds,
            "optimiser": 0.05 * seconds,
            "other": 0.01 * seconds,
        }
        events.write(
            "step",
            sums=[loss * images, round(hits, 1), images * 0.95],
            norm=1.5,
            step=step,
            position=step * self.batch,
            epoch=round(step * self.batch / self.samples, 4),
            batch=self.batch,
            images=images,
            lr=round(0.4 * (1 - share), 6),
            work={"read": 0.002, "decode": 0.05, "cpu": 0.05},
            parts={name: round(value, 6) for name, value in parts.items()},
            on_cpu={"forward": round(0.27 * seconds, 6), "backward": round(0.49 * seconds, 6)},
            cores={"cpu": 1.5 * seconds, "wait": 0.001},
        )

    def _probe(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "seconds": 5.0,
            "cpu": {"own_cores": 1.9, "busy": 0.8, "iowait": 0.01, "steal": 0.002},
            "pressure": {"cpu": 0.04, "io": 0.01, "memory": 0.0},
            "main": {"cpu": 0.9, "delay": 0.01},
            "memory": {"own_bytes": 2 << 30, "available_bytes": 40 << 30},
            "disk": {"read_bytes": 50 << 20, "write_bytes": 1 << 20},
            "network": {"eth0": {"rx_bytes": 400 << 20, "tx_bytes": 400 << 20}},
            "lock": {"wakes": 50, "late_share": 0.0},
        }
        if self.gpus:
            gpu = {"busy": 0.93, "used_bytes": 30 << 30, "total_bytes": 40 << 30, "power_w": 310.0}
            facts["gpus"] = [{"device": "a GPU", **gpu}] * self.ranks
        return facts

    def _evaluate(self, events: Events, step: int) -> None:
        share = 0.1 + 0.75 * (1 - math.exp(-3 * step / self.total))
        self.best = max(self.best, share)
        position = step * self.batch
        events.write("evaluating", step=step, position=position)
        self.clock.now += 4.0
        events.write(
            "evaluation",
            step=step,
            position=position,
            epoch=position / self.samples,
            images=800,
            top1=round(800 * share),
            top5=790,
            loss=1.9 * (1 - share),
            seconds=4.0,
        )
        self._keep_evaluation(step, round(800 * share))

    def _keep_evaluation(self, step: int, hits: int) -> None:
        count = len(self.classes)
        images = [800 // count] * count
        images[0] += 800 - sum(images)
        right = [min(round(n * hits / 800), n) for n in images]
        pairs = enumerate(zip(images, right, strict=True))
        wrong = [(c, (c + 1) % count, n - r) for c, (n, r) in pairs if n > r]
        report = EvaluationReport(
            split="val",
            images=800,
            top1=sum(right),
            top5=800,
            loss=0.5,
            classes=self.classes,
            per_class=list(zip(images, right, images, strict=True)),
            confusions=sorted(wrong, key=lambda row: -row[2]),
            confused_pairs=len(wrong),
            unpredicted=0,
            ece=0.03,
            bins=[(0, 0, 0.0)] * (BINS - 1) + [(800, sum(right), 0.9)],
            worst=[WorstSample(3, "val/a/3.jpg", 0, 1 % count, 0.98, 4.2)],
        )
        data = report_data(report, step=step, position=step * self.batch)
        (self.run.path / "evaluation.json").write_bytes(report_bytes(data))

    def _save(self, events: Events, step: int) -> None:
        events.write(
            "checkpoint",
            step=step,
            position=step * self.batch,
            name=f"{step:09d}",
            bytes=90 << 20,
            seconds=0.4,
            blocked_s=0.02,
        )

    def _end(self, files: list[Events], step: int, outcome: str) -> None:
        lines = ["bound by compute: 83% of the time", "next: use a faster device"]
        files[0].write("verdict", step=step, limit="compute", words="compute", lines=lines)
        for events in files:
            events.write(
                "end",
                outcome=outcome,
                reason="SIGTERM" if outcome == "interrupted" else "",
                parts={"other": 0.01},
                position=step * self.batch,
                step=step,
                best=self.best,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=8)
    parsed = parser.parse_args()
    maker = RunMaker(parsed.folder, steps=parsed.steps, ranks=parsed.ranks, gpus=True)
    half = parsed.steps // 2
    maker.attempt(0, half + 500, None).attempt(half, parsed.steps)


if __name__ == "__main__":
    main()
