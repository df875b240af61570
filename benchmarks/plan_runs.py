"""Plans made on this machine before ten runs, against what the runs then took and cost.

    python benchmarks/plan_runs.py --tiny FOLDER-or-TAR --photos FOLDER-or-TAR [--out FILE.json]

Each row: `stoker plan --here` in a process of its own, then `stoker train` with the same flags. The
time of a run is that of its process by the clock beside it; its dollars are those of its ledger.
A range holds where both lie in it. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compare.sets import photographs_in
from stoker.plan.ranges import FigureRange
from stoker.price.ledger.cost import cost_of
from stoker.run.directory import Run

CLASSES, TRAIN, EVALUATED = 20, 100, 25
"""Of the small set: classes, and images of each."""
PHOTO_CLASSES, PHOTOS, PHOTOS_EVALUATED = 10, 80, 20
PER_HOUR = 1.2
ROWS = (
    ("tiny", "resnet9_w16", 64, 64, 6),
    ("tiny", "resnet9_w24", 64, 32, 4),
    ("tiny", "mobilenetv2_050", 96, 32, 5),
    ("tiny", "mobilenetv3_small_100", 96, 32, 6),
    ("tiny", "resnet10t", 96, 16, 2),
    ("tiny", "regnetx_002", 96, 16, 4),
    ("tiny", "resnet18", 96, 32, 2),
    ("photos", "mobilenetv2_100", 128, 16, 4),
    ("photos", "resnet18", 128, 16, 2),
    ("photos", "mobilenetv3_large_100", 128, 16, 5),
)
"""Set, model, image size, batch size, epochs."""
MOST_WIDTH, HELD = 0.2, 9


@dataclass(frozen=True)
class Compared:
    """A plan and its run."""

    label: str
    planned_h: FigureRange
    planned_dollars: FigureRange
    seconds: float
    dollars: float

    @property
    def held(self) -> bool:
        hours, dollars = self.planned_h, self.planned_dollars
        in_time = hours.low <= self.seconds / 3600 <= hours.high
        return in_time and dollars.low <= self.dollars <= dollars.high

    def line(self) -> str:
        seconds = self.planned_h * 3600.0
        error = self.seconds / seconds.middle - 1
        planned = f"{seconds.middle:.0f} ({seconds.low:.0f} to {seconds.high:.0f})"
        return (
            f"| {self.label} | {planned} | {self.seconds:.0f} "
            f"| {100 * error:+.1f} | {self.planned_dollars.middle:.4f} | {self.dollars:.4f} "
            f"| {100 * seconds.width:.0f} | {'yes' if self.held else '**no**'} |"
        )


def packed(source: Path, folder: Path, name: str, counts: tuple[int, int, int]) -> Path:
    """A small packed set: so many classes, with images for training and for evaluation."""
    classes, trained, evaluated = counts
    wanted, root = trained + evaluated, folder / name
    (folder / f"{name}-files").mkdir()
    paths = photographs_in(source, folder / f"{name}-files")[: classes * wanted]
    for number, path in enumerate(paths):  # what an image shows does not matter for time
        group, place = divmod(number, wanted)
        split = "train" if place < trained else "val"
        target = root / split / f"class{group:02d}" / f"{place:04d}{path.suffix.lower()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.resolve())
    stoker("pack", str(root), str(folder / f"{name}-packed"))
    return folder / f"{name}-packed"


def stoker(*words: str) -> float:
    """Run a command of the product to its end; returns its seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "stoker", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def compare(data: Path, row: tuple[str, str, int, int, int], folder: Path) -> Compared:
    name, model, size, batch, epochs = row
    flags = ["--model", model, "--image-size", str(size), "--batch-size", str(batch)]
    words = [str(data), *flags, "--epochs", str(epochs), "--price-per-hour", f"{PER_HOUR:g}"]
    file, run = folder / "plan.json", folder / f"run-{name}-{model}"
    stoker("plan", *words, "--here", "--json", str(file))
    (plan,) = json.loads(file.read_text())
    seconds = stoker("train", *words, "--run", str(run))
    return Compared(
        f"{name}, {model}, {size} px, batch {batch}, {epochs} epochs",
        FigureRange(**plan["hours"]),
        FigureRange(**plan["on_demand_dollars"]),
        seconds,
        cost_of(Run(run)).total,
    )


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--tiny", type=Path, required=True, help="folders of small images")
    flags.add_argument("--photos", type=Path, required=True, help="photographs of any size")
    flags.add_argument("--out", type=Path, help="also write the figures there")
    flags.add_argument("--rows", type=int, default=len(ROWS), help="the first so many alone")
    parsed = flags.parse_args()
    rows: list[Compared] = []
    print("| run | planned s | took s | error % | planned $ | cost $ | range +- % | held |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        counts = {
            "tiny": (parsed.tiny, (CLASSES, TRAIN, EVALUATED)),
            "photos": (parsed.photos, (PHOTO_CLASSES, PHOTOS, PHOTOS_EVALUATED)),
        }
        wanted = ROWS[: parsed.rows]
        sets = {
            name: packed(counts[name][0], folder, name, counts[name][1])
            for name in {row[0] for row in wanted}
        }
        for row in wanted:
            rows.append(compare(sets[row[0]], row, folder))
            print(rows[-1].line(), flush=True)
            if parsed.out:
                parsed.out.write_text(json.dumps([as_data(each) for each in rows], indent=1))
    held, widest = sum(row.held for row in rows), max(row.planned_h.width for row in rows)
    print(f"\nheld in {held} of {len(rows)}; the widest range is +-{100 * widest:.0f} %")
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    return 0 if held >= HELD * len(rows) / len(ROWS) and widest <= MOST_WIDTH else 1


def as_data(row: Compared) -> dict[str, Any]:
    return {**asdict(row), "held": row.held}


if __name__ == "__main__":
    sys.exit(main())
