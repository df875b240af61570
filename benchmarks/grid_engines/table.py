"""How each engine is started, started again after a kill, and joined by a further worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
Words = list[str]


@dataclass(frozen=True)
class Site:
    """What the commands of an engine are made of."""

    python: Path
    """The interpreter of the engine's environment."""
    folder: Path
    """An empty folder for this grid."""
    sweep: Words
    """The same grid as words of `stoker sweep`, without its workers."""
    workers: int

    @property
    def spec(self) -> Path:
        return self.folder / "spec.json"


@dataclass(frozen=True)
class Engine:
    title: str
    start: Callable[[Site], Words]
    """Starts the grid, and goes on with it."""
    before_again: Callable[[Site], Words] | None = None
    """What is to be run after a kill before the grid can go on."""
    join: Callable[[Site], Words] | None = None
    """Adds a worker, as another machine would; without it, `start` is given a second time."""
    slurm: bool = False


def script(name: str, *words: str) -> Callable[[Site], Words]:
    """Runs the file of an engine."""
    return lambda site: [
        str(site.python),
        "-P",
        "-m",
        f"grid_engines.{name}",
        str(site.spec),
        *words,
    ]


def sweep(*words: str) -> Callable[[Site], Words]:
    def command(site: Site) -> Words:
        workers = ["--workers", str(site.workers)]
        return [sys.executable, "-P", "-m", "stoker", "sweep", *site.sweep, *workers, *words]

    return command


def work(site: Site) -> Words:
    grid = site.folder / "sweep"
    (plan,) = (file.stem for file in (grid / "plans").iterdir())
    return [sys.executable, "-P", "-m", "stoker", "work", str(grid), "--plan", plan]


def snakemake(*words: str) -> Callable[[Site], Words]:
    def command(site: Site) -> Words:
        command = [
            str(site.python),
            "-P",
            "-m",
            "snakemake",
            "--snakefile",
            str(HERE / "Snakefile"),
        ]
        command += ["--directory", str(site.folder), "--config", f"spec={site.spec}"]
        return [*command, "--cores", str(site.workers), "--keep-going", *words]

    return command


def ray_node(site: Site) -> Words:
    address = (site.folder / "address").read_text("utf-8")
    ray = str(site.python.with_name("ray"))
    # The driver's cluster asks for the token that it left in the home directory.
    token = ["env", "RAY_AUTH_MODE=token"]
    return [*token, ray, "start", f"--address={address}", "--num-cpus=1", "--block"]


ENGINES = {
    "stoker": Engine("Stoker", sweep(), join=work),
    "pool": Engine("none: a pool of commands", script("with_pool")),
    "optuna": Engine("Optuna", script("with_optuna")),
    "ray": Engine("Ray Tune", script("with_ray"), join=ray_node),
    "snakemake": Engine("Snakemake", snakemake("--rerun-incomplete"), snakemake("--unlock")),
    "submitit": Engine("submitit, local", script("with_submitit")),
    "stoker-slurm": Engine("Stoker on SLURM", sweep("--on", "slurm", "--wait"), slurm=True),
    "submitit-slurm": Engine("submitit on SLURM", script("with_submitit", "slurm"), slurm=True),
}
