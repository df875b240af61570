"""An environment for each peer that needs one: made once, below one folder, used again.

Invariants: `ready.json` is written last and names what was installed; an environment without it,
or for another list or interpreter, is made anew. One that shares sees the running interpreter's
packages through a .pth file and is held to its torch: torch is never installed twice. Nothing is
ever installed into the running interpreter.
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
    """Why an environment could not be made, in one line."""


_refused: dict[str, CannotInstall] = {}


def interpreter(name: str, below: Path) -> Path:
    """The interpreter of an environment, which is made first if it is not there; what could not be
    made is not tried again by the same command."""
    if name in _refused:
        raise _refused[name]
    try:
        return made(name, below)
    except CannotInstall as error:
        _refused[name] = error
        shutil.rmtree(below / name, ignore_errors=True)
        raise


def made(name: str, below: Path) -> Path:
    wanted = TABLE["environments"][name] | {"python": sys.version, "from": sys.prefix}
    place = (below / name).resolve()
    python = place / "bin" / "python"
    ready = place / "ready.json"
    if ready.is_file() and json.loads(ready.read_text("utf-8")) == wanted:
        return python
    shutil.rmtree(place, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(place)])
    held: list[str] = []
    if wanted["shares"]:
        share(python, place)
        held = ["--constraint", str(hold_torch(place))]
    # A path is ours, from the project's folder on.
    packages = [str(ROOT / name) if name.startswith("./") else name for name in wanted["packages"]]
    run([str(python), "-m", "pip", "install", "--quiet", *held, *packages])
    ready.write_text(json.dumps(wanted), encoding="utf-8")
    return python


def share(python: Path, place: Path) -> None:
    """Let an environment see our packages, after its own."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = Path(run([str(python), "-c", ask]).strip())
    assert theirs.is_relative_to(place)
    # An editable install is a .pth file itself, and those of a shared folder are not read.
    shared = [sysconfig.get_path("purelib"), str(Path(stoker.__file__).parents[1])]
    (theirs / "shared.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")


def hold_torch(place: Path) -> Path:
    held = place / "held.txt"
    try:
        held.write_text(f"torch=={version('torch').split('+')[0]}\n", encoding="utf-8")
    except PackageNotFoundError as error:
        raise CannotInstall("the running interpreter has no torch to share") from error
    return held


def run(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"not installed after {PATIENCE_S} s") from error
    except subprocess.CalledProcessError as error:
        raise CannotInstall(reason(error.stderr)) from error


def reason(printed: str) -> str:
    """The line of an installer's complaint that says most."""
    lines = [line.strip(" │╰─>") for line in printed.splitlines()]
    for word in ("Could not find", "fatal error:", "RuntimeError:", "ERROR:"):
        for line in lines:
            if word in line:
                return line[:200]
    return next((line[:200] for line in reversed(lines) if line), "no reason given")
