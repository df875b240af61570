"""Which versions of Python and PyTorch work: an environment for each row, removed afterwards.

    python .ci/versions.py                     every row
    python .ci/versions.py --torch 2.8.0       one version of PyTorch, with this Python
    python .ci/versions.py --python python3.13 --torch 2.15.0
    python .ci/versions.py --quick             a run that trains, nothing else

Each environment gets the wheel of this tree, one PyTorch, and the test tools, with the pinned
versions of everything else. It runs a share of the suite and prints a row for docs/hardware.md. A
pin of bits is reported, not failed, where the PyTorch is not the one that recorded it. Several
gigabytes are downloaded for each row.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST, MIDDLE = "2.8.0", "2.11.0"
NEWER_PYTHONS = ("python3.12", "python3.13", "python3.14")
"""Tried with the newest PyTorch, where they are in PATH."""
TOOLS = ("hypothesis", "pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist", "timm")
SHARE = ("tests/unit/train", "tests/unit/data/loading", "tests/compat", "tests/chaos/test_kills.py")
RECORDED = ("tests/compat/test_pins.py",)
"""Tests of bits that another PyTorch may compute otherwise."""
IMITATIONS = ("tests/unit/train/test_crossings.py",)
"""Tests that imitate a GPU by parts of PyTorch that change from version to version."""
LIMIT_S = 3600


def pinned() -> dict[str, str]:
    """The versions of constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def run(*words: object, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def starts(python: str) -> bool:
    """Whether this Python runs: a version manager may have its name alone."""
    return bool(shutil.which(python)) and run(python, "-c", "").returncode == 0


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree. Raises SystemExit where it cannot be built."""
    done = run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    return next(folder.glob("stoker-*.whl"))


def install(python: str, torch: str, wheel: Path, folder: Path) -> Path | str:
    """The interpreter of a new environment; or why it cannot be made."""
    made = run(python, "-m", "venv", folder)
    interpreter, constraints = folder / "bin" / "python", folder / "constraints.txt"
    if made.returncode:
        return made.stderr.strip().splitlines()[-1]
    others = {name: v for name, v in pinned().items() if name not in ("torch", "torchvision")}
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in others.items()))
    pip = (interpreter, "-m", "pip", "install", "-q")
    done = run(*pip, f"torch=={torch}", *needed(), *TOOLS, PIP_CONSTRAINT=str(constraints))
    if done.returncode == 0:
        # Without its requirements: a version that is tried may be older than they allow.
        done = run(*pip, "--no-deps", wheel)
    lines = done.stderr.strip().splitlines() or ["pip failed"]
    return interpreter if done.returncode == 0 else lines[-1]


def needed() -> list[str]:
    """What the package requires, except PyTorch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name for name in project["dependencies"] if not name.startswith("torch")]


def version_of(python: str) -> str:
    """The version of an interpreter, such as 3.11.7."""
    return run(python, "-c", "import platform; print(platform.python_version())").stdout.strip()


def summary(output: str) -> str:
    """The last line of pytest, without its time."""
    lines = output.strip().splitlines() or ["no output"]
    return re.sub(r" in [0-9.]+s.*", "", lines[-1].strip("= "))


def trains(interpreter: Path, folder: Path) -> str:
    """Train on a few pictures with the installed command; empty, or why it failed."""
    program = "import sys; from pathlib import Path; from samples import image_folder as make; "
    photos = folder / "photos"
    made = run(
        interpreter,
        "-c",
        f"{program} make(Path({str(photos)!r}))",
        PYTHONPATH=str(ROOT / "tests"),
    )
    words = ("train", photos, "--run", folder / "run", "--epochs", 1, "--batch-size", 8)
    done = run(interpreter.parent / "stoker", *words, "--ranks", 2, folder=folder, PYTHONPATH="")
    return "" if done.returncode == 0 else (done.stderr or made.stderr).strip().splitlines()[-1]


def row(python: str, torch: str, wheel: Path, quick: bool) -> tuple[str, bool]:
    """A row of the table, and whether everything passed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stoker-versions-") as name:
        folder = Path(name)
        interpreter = install(python, torch, wheel, folder / "environment")
        if isinstance(interpreter, str):
            return f"| {version_of(python)} | {torch} | not installed: {interpreter} | |", False
        failure = trains(interpreter, folder)
        cells = [version_of(python), torch, failure or "trains with 2 ranks"]
        if not quick:
            newest = torch == pinned()["torch"]
            left_out = [] if newest else [f"--ignore={path}" for path in (*RECORDED, *IMITATIONS)]
            words = (interpreter, "-m", "pytest", "-q", "-n", 2, "-m", "not alone", *SHARE)
            tested = run(*words, *left_out, PYTHONPATH="")
            cells.append(summary(tested.stdout))
            failure = failure or ("tests failed" if tested.returncode else "")
            if failure:
                print(tested.stdout[-6000:], file=sys.stderr)
            if not newest:
                bits = run(*words[: -len(SHARE)], *RECORDED, PYTHONPATH="")
                cells.append(f"bits of {pinned()['torch']}: {summary(bits.stdout)}")
        cells.append(f"{(time.monotonic() - began) / 60:.0f} min")
        return f"| {' | '.join(cells)} |", not failure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter [this one]")
    parser.add_argument("--torch", default="", help="versions, separated by commas")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    newest = pinned()["torch"]
    rows = [(options.python, version) for version in filter(None, options.torch.split(","))]
    if not rows:
        rows = [(options.python, version) for version in (OLDEST, MIDDLE, newest)]
        rows += [(python, newest) for python in filter(starts, NEWER_PYTHONS)]
    passed = True
    with tempfile.TemporaryDirectory(prefix="stoker-wheel-") as folder:
        wheel = build_wheel(Path(folder))
        for python, torch in rows:
            line, right = row(python, torch, wheel, options.quick)
            print(line, flush=True)
            passed = passed and right
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
