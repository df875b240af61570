"""The same grid of 24 short trainings under several engines, with kills: what each costs and loses.

    python benchmarks/engines.py FOLDER [--python optuna=PATH ...] [--slurm-conf FILE]

Everything is written below FOLDER. Started again, it measures what is missing there. `--python`
names the interpreter of an environment with an engine: optuna, ray (`ray[tune]`), snakemake or
submitit; an engine without one is left out. `--slurm-conf` is the configuration of a SLURM that
runs on this machine: the rows on SLURM are left out without it. Stoker and a bare pool of commands
are always measured.

A cell trains resnet9_w8 on 600 images of 32 pixels, with one compute thread. First all cells run
one after the other, for the bits. Then each engine runs them with two workers: a command is killed
after 4 cells, the driver after 8, a worker after 14, each up to two seconds later, by a seed. A
second, smaller grid with one worker shows what a further worker does and what an edit changes. Then
three grids are only begun, for the time until their first command: the shortest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grid_engines.install import added
from grid_engines.outcome import all_facts, recorded
from grid_engines.report import tables
from grid_engines.table import ENGINES, Engine, Site
from grid_engines.trial import Kill, Trial, begin, run_with_edit, run_with_kills
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack

RATES, SEEDS, FEW_RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4), (0, 1, 2, 3), (0.05, 0.1)
KILLS: tuple[Kill, ...] = ((4, "command"), (8, "driver"), (14, "worker"))
IMAGES, CLASSES, SIZE = 240, 3, 32
BEGINNINGS = 3
RECIPE = """model = "resnet9_w8"
image_size = 32
batch_size = 32
crop = "pad"
crop_pct = 1.0
rehearse = false
epochs = {epochs}
"""
SOURCES = Path(__file__).parents[1] / "src"
Bits = dict[tuple[float, int], str]
"""The hash of the weights of each cell, by its learning rate and seed."""


@dataclass(frozen=True)
class Work:
    """The trainings of a grid."""

    data: Path
    recipe: Path
    rates: tuple[float, ...]

    @property
    def cells(self) -> list[tuple[float, int]]:
        return [(rate, seed) for rate in self.rates for seed in SEEDS]

    def commands(self, folder: Path) -> dict[str, list[str]]:
        """The command of each cell, by its name."""
        module = [sys.executable, "-P", "-m", "grid_engines.cell", str(self.data)]
        return {
            f"lr{rate}-seed{seed}": [
                *(*module, "--recipe", str(self.recipe), "--lr", str(rate), "--seed", str(seed)),
                *("--run", str(folder / "runs" / f"lr{rate}-seed{seed}")),
            ]
            for rate, seed in self.cells
        }

    def sweep(self, folder: Path) -> list[str]:
        """The same cells as words of `stoker sweep`."""
        rates, seeds = (",".join(map(str, values)) for values in (self.rates, SEEDS))
        return [
            *(str(self.data), "--recipe", str(self.recipe), "--out", str(folder / "sweep")),
            *("--set", f"lr={rates}", "--set", f"seed={seeds}", "--compute-threads", "1"),
        ]


def make_set(root: Path) -> Path:
    """A packed set of noise over a colour for each class."""
    for label in range(CLASSES):
        for number in range(IMAGES):
            split = "train" if number < IMAGES * 5 // 6 else "val"
            folder = root / "photos" / split / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng([label, number]).normal(0, 50, (SIZE, SIZE, 3))
            pixels = np.clip(noise + 80 * np.eye(CLASSES)[label] + 80, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    storage = Storage(codec="raw")
    return pack(root / "photos", root / "packed", storage=storage, val_share=0, workers=1)


def variables_of(root: Path, slurm_conf: Path | None) -> dict[str, str]:
    """What engines find in their environment: nothing leads out of the folder."""
    paths = [str(SOURCES), str(Path(__file__).parent)]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "HOME": str(root),
        "XDG_CACHE_HOME": str(root / "cache"),
        "RAY_TMPDIR": str(root / "r"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    return variables | ({"SLURM_CONF": str(slurm_conf)} if slurm_conf else {})


def trial_of(engine: Engine, python: Path, folder: Path, work: Work, workers: int) -> Trial:
    """A grid that has not begun, in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    site = Site(python, folder, work.sweep(folder), workers)
    fields = {"folder": str(folder), "workers": workers, "commands": work.commands(folder)}
    site.spec.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    return Trial(engine, site)


def serial_bits(root: Path, work: Work) -> Bits:
    """The hash of the last weights of each cell, run one after the other."""
    with (root / "serial.txt").open("ab") as log:
        for words in work.commands(root / "serial").values():
            subprocess.run(words, check=True, stdout=log, stderr=log)
    return {(facts.lr, facts.seed): facts.weights for facts in all_facts(root / "serial")}


def kills_row(trial: Trial, seed: int, bits: Bits) -> dict[str, Any]:
    """Run a grid with kills; returns what it cost and left behind."""
    late = {}
    try:
        run_with_kills(trial, KILLS, seed, len(bits))
    except TimeoutError as error:
        late["gave_up"] = str(error)
    facts = all_facts(trial.site.folder)
    weights = {(each.lr, each.seed): each.weights for each in facts}
    return late | {
        "memory": trial.memory,
        "seconds": trial.seconds,
        "killed": trial.killed,
        "starts": trial.starts,
        "commands": sum(map(len, trial.commands.values())),
        "at_once": len(trial.at_once),
        "needless": trial.needless,
        "left_over": trial.left_over,
        "steps_repeated": sum(each.repeated for each in facts),
        "missing": sum(not weights.get(cell) for cell in bits),
        "equal": sum(weights.get(cell) == value for cell, value in bits.items()),
        "recorded": recorded(trial.site.folder, trial.log),
    }


def edit_row(trial: Trial, work: Work) -> dict[str, Any]:
    """Run a grid which a worker joins, and whose recipe is edited; returns what came of that."""
    joined = run_with_edit(trial, work.recipe, RECIPE.format(epochs=2), len(work.cells))
    edited = sum(facts.epochs == 2 for facts in all_facts(trial.site.folder))
    return {"join": asdict(joined) | {"at_once": len(trial.at_once)}, "edited": edited}


def install_row(name: str, python: Path) -> dict[str, Any]:
    packages = added(python)
    size = sum(size for _, size in packages.values())
    return {"version": packages[name][0], "packages": len(packages), "bytes": size}


def measure(
    row: dict[str, Any], name: str, python: Path, root: Path, seed: int, bits: Bits
) -> bool:
    """Measure the next thing that a row does not have; returns False where it has everything."""
    engine = ENGINES[name]
    work = Work(root / "packed", root / "grid.toml", RATES)
    if "starts" not in row:
        row |= kills_row(trial_of(engine, python, root / name, work, 2), seed, bits)
    elif "join" not in row and not engine.slurm:
        few = Work(root / "packed", root / f"{name}.toml", FEW_RATES)
        few.recipe.write_text(RECIPE.format(epochs=1), encoding="utf-8")
        row |= edit_row(trial_of(engine, python, root / f"{name}-edit", few, 1), few)
    elif "packages" not in row and python != Path(sys.executable):
        row |= install_row(name.removesuffix("-slurm"), python)
    elif "start_up_s" not in row:
        trials = (
            trial_of(engine, python, root / f"{name}-start", work, 2) for _ in range(BEGINNINGS)
        )
        row["start_up_s"] = min(map(begin, trials))
    else:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--slurm-conf", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    root = flags.folder.absolute()
    root.mkdir(parents=True, exist_ok=True)
    os.environ |= variables_of(root, flags.slurm_conf)
    if not (root / "packed").exists():
        make_set(root)
    (root / "grid.toml").write_text(RECIPE.format(epochs=flags.epochs), encoding="utf-8")
    bits = serial_bits(root, Work(root / "packed", root / "grid.toml", RATES))
    pythons = dict.fromkeys(("stoker", "pool"), Path(sys.executable))
    for text in flags.python:
        name, _, path = text.partition("=")
        pythons[name] = Path(path)
    file = root / "engines.json"
    rows: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for name, engine in ENGINES.items():
        python = pythons.get(name.removesuffix("-slurm"))
        if python and (flags.slurm_conf or not engine.slurm):
            row = rows.setdefault(name, {"title": engine.title})
            while measure(row, name, python, root, flags.seed, bits):
                print(name, json.dumps(row), file=sys.stderr, flush=True)
                file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores", *tables(rows), sep="\n")


if __name__ == "__main__":
    main()
