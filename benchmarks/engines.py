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
second, smaller grid with one worker shows what a further worker does and what an edit changes.
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
from grid_engines.trial import Kill, Trial, run_with_edit, run_with_kills
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack

RATES, SEEDS, FEW_RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4), (0, 1, 2, 3), (0.05, 0.1)
KILLS: tuple[Kill, ...] = ((4, "command"), (8, "driver"), (14, "worker"))
IMAGES, CLASSES, SIZE = 240, 3, 32
RECIPE = """model = "resnet9_w8"
image_size = 32
batch_size = 32
crop = "pad"
crop_pct = 1.0
rehearse = false
epochs = {epochs}
"""
SOURCES = Path(__file__).parents[1] / "src"


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


def site_of(python: Path, folder: Path, work: Work, workers: int) -> Site:
    """The folder of a grid, with what an engine is told."""
    folder.mkdir(parents=True)
    site = Site(python, folder, work.sweep(folder), workers)
    fields = {"folder": str(folder), "workers": workers, "commands": work.commands(folder)}
    site.spec.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    return site


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


def serial_bits(root: Path, work: Work) -> dict[tuple[float, int], str]:
    """The hash of the last weights of each cell, run one after the other."""
    with (root / "serial.txt").open("ab") as log:
        for words in work.commands(root / "serial").values():
            subprocess.run(words, check=True, stdout=log, stderr=log)
    return {(facts.lr, facts.seed): facts.weights for facts in all_facts(root / "serial")}


def faults_row(trial: Trial, bits: dict[tuple[float, int], str]) -> dict[str, Any]:
    """What a grid with kills left behind."""
    facts = all_facts(trial.site.folder)
    weights = {(each.lr, each.seed): each.weights for each in facts}
    return {
        "start_up_s": trial.start_up_s,
        "memory": trial.memory,
        "seconds": trial.seconds,
        "killed": trial.killed,
        "starts": trial.starts,
        "commands": sum(map(len, trial.commands.values())),
        "attempts": sum(each.attempts for each in facts),
        "at_once": len(trial.at_once),
        "needless": trial.needless,
        "left_over": trial.left_over,
        "steps_repeated": sum(each.repeated for each in facts),
        "steps": sum(each.steps - each.repeated for each in facts),
        "missing": sum(not weights.get(cell) for cell in bits),
        "equal": sum(weights.get(cell) == value for cell, value in bits.items()),
        "recorded": recorded(trial.site.folder, trial.log),
    }


def measure(name: str, engine: Engine, python: Path, root: Path, flags: Any) -> dict[str, Any]:
    """Both grids of an engine."""
    variables = variables_of(root, flags.slurm_conf)
    work = Work(root / "packed", root / "grid.toml", RATES)
    trial = Trial(engine, site_of(python, root / name, work, 2), variables)
    row: dict[str, Any] = {"title": engine.title, "slurm": engine.slurm}
    try:
        run_with_kills(trial, KILLS, flags.seed, len(work.cells))
    except TimeoutError as error:
        row["gave_up"] = str(error)
    row |= faults_row(trial, flags.bits)
    if not engine.slurm:
        recipe = root / f"{name}.toml"
        recipe.write_text(RECIPE.format(epochs=1), encoding="utf-8")
        few = Work(root / "packed", recipe, FEW_RATES)
        second = Trial(engine, site_of(python, root / f"{name}-edit", few, 1), variables)
        joined = run_with_edit(second, recipe, RECIPE.format(epochs=2), len(few.cells))
        facts = all_facts(second.site.folder)
        row["join"] = asdict(joined) | {"at_once": len(second.at_once)}
        row["edited"] = sum(each.epochs == 2 for each in facts)
    if python != Path(sys.executable):
        packages = added(python)
        row["version"] = packages[name.split("-")[0]][0]
        row |= {"packages": len(packages), "bytes": sum(size for _, size in packages.values())}
    return row


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
    if not (root / "packed").exists():
        make_set(root)
    (root / "grid.toml").write_text(RECIPE.format(epochs=flags.epochs), encoding="utf-8")
    os.environ |= variables_of(root, None)
    flags.bits = serial_bits(root, Work(root / "packed", root / "grid.toml", RATES))
    own = Path(sys.executable)
    pythons = {"stoker": own, "pool": own}
    pythons |= {
        name: Path(path) for name, _, path in (text.partition("=") for text in flags.python)
    }
    file = root / "engines.json"
    rows: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for name, engine in ENGINES.items():
        python = pythons.get(name.removesuffix("-slurm"))
        if python and name not in rows and (flags.slurm_conf or not engine.slurm):
            for folder in (root / name, root / f"{name}-edit"):
                shutil.rmtree(folder, ignore_errors=True)
            rows[name] = measure(name, engine, python, root, flags)
            print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
            file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores", *tables(rows), sep="\n")


if __name__ == "__main__":
    main()
