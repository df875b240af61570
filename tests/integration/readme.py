"""Run every command of the README as a newcomer would: in an empty directory, top to bottom.

    python tests/integration/readme.py [--install]

With --install the `pip install .` line is run too, by way of what would be published: a source
archive is built, a wheel from it, and the wheel is installed. So a clean virtual environment needs
nothing but this script. Needs no test library.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from page_materials import photos
from pages import ROOT, commands_in

KINDS = (".py", ".toml", ".typed")
"""Files of the package, by their endings."""


def built(folder: Path) -> Path:
    """The wheel that is built from the source archive of this tree; both are complete."""
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "hatchling"], check=True)
    archive = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(archive, cwd=ROOT, check=True)
    (source,) = folder.glob("*.tar.gz")
    wheel = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*wheel, str(source)], check=True)
    (path,) = folder.glob("*.whl")
    package = ROOT / "src"
    sources = {str(f.relative_to(package)) for f in package.rglob("*") if f.suffix in KINDS}
    with zipfile.ZipFile(path) as opened:
        missing = sources - {*opened.namelist()}
    if missing:
        raise SystemExit(f"{path.name} lacks {', '.join(sorted(missing))}")
    return path


def follow(install: bool = False) -> list[str]:
    """Run the commands; what each printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as place:
        for command in commands_in((ROOT / "README.md").read_text()):
            is_install = command.startswith("pip install")
            if is_install and not install:
                continue
            if not is_install and not Path(place, "photos").exists():
                photos(Path(place))
            print(f"$ {command}", flush=True)
            if command == "pip install .":
                command = f"pip install {shlex.quote(str(built(Path(place, 'built'))))}"
            done = subprocess.run(
                ["bash", "-ec", command],
                cwd=ROOT if is_install else place,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
            )
            print(done.stdout if not is_install else "", done.stderr, sep="", flush=True)
            if done.returncode:
                raise SystemExit(f"a command of the README failed ({done.returncode}): {command}")
            printed.append(done.stdout)
            if is_right_answer(done.stdout):
                seconds = time.monotonic() - began
                print(f"{seconds:.0f} s until a new photograph had its class\n", flush=True)
    return printed


def is_right_answer(rows: str) -> bool:
    """Whether a prediction names the class of the photograph that no set has."""
    return any(line.startswith("new.jpg,class1,") for line in rows.splitlines())


if __name__ == "__main__":
    if not any(map(is_right_answer, follow(install="--install" in sys.argv))):
        raise SystemExit("no command of README.md named the class of the new photograph")
