"""A virtual environment for each peer that needs one: made once, below one folder, and reused.

Invariants: `ready.json` is written last and names what was installed. An environment without it, or
for another list of packages or interpreter, is made again. An environment that shares finds the
running interpreter's packages through a .pth file and is pinned to its torch, so that torch is
never installed twice. Nothing is installed into the running interpreter.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import stoker

PATIENCE_S = 600
ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers"
TABLE: dict[str, Any] = tomllib.loads((PEERS / "peers.toml").read_text("utf-8"))


class CannotInstall(Exception):
    """The reason why an environment could not be made, in one line."""


_failures: dict[str, CannotInstall] = {}


def interpreter(name: str, below: Path) -> Path:
    """The interpreter of an environment, which is made first where it is missing. Raises
    CannotInstall; a failed environment is not tried again by the same command."""
    if name in _failures:
        raise _failures[name]
    try:
        return make(name, below)
    except CannotInstall as error:
        _failures[name] = error
        shutil.rmtree(below / name, ignore_errors=True)
        raise


def make(name: str, below: Path) -> Path:
    contents = TABLE["environments"][name] | {"python": sys.version, "from": sys.prefix}
    folder = (below / name).resolve()
    python = folder / "bin" / "python"
    ready = folder / "ready.json"
    if ready.is_file() and json.loads(ready.read_text("utf-8")) == contents:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)])
    constraint: list[str] = []
    if contents["shares"]:
        share(python, folder)
        constraint = ["--constraint", str(pin_torch(folder))]
    # Paths are relative to the project's folder.
    packages = [
        str(ROOT / name) if name.startswith("./") else name for name in contents["packages"]
    ]
    run([str(python), "-m", "pip", "install", "--quiet", *constraint, *packages])
    ready.write_text(json.dumps(contents), encoding="utf-8")
    return python


def share(python: Path, folder: Path) -> None:
    """Let an environment find our packages, after its own."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([str(python), "-c", code]).strip())
    assert packages.is_relative_to(folder)
    # An editable install is a .pth file itself, and .pth files in a shared folder are not read.
    shared = [sysconfig.get_path("purelib"), str(Path(stoker.__file__).parents[1])]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")


def pin_torch(folder: Path) -> Path:
    """A constraints file with the running interpreter's torch."""
    constraints = folder / "constraints.txt"
    try:
        constraints.write_text(f"torch=={version('torch').split('+')[0]}\n", encoding="utf-8")
    except PackageNotFoundError as error:
        raise CannotInstall("the running interpreter has no torch to share") from error
    return constraints


def run(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"the installation did not end within {PATIENCE_S} s") from error
    except subprocess.CalledProcessError as error:
        raise CannotInstall(reason(error.stderr)) from error


def reason(printed: str) -> str:
    """The most informative line of an installer's output."""
    lines = [line.strip(" │╰─>") for line in printed.splitlines()]
    for word in ("Could not find", "fatal error:", "RuntimeError:", "ERROR:"):
        for line in lines:
            if word in line:
                return line[:200]
    return next((line[:200] for line in reversed(lines) if line), "no reason given")
