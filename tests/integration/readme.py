"""Run every command of the README as a newcomer would: in an empty directory, top to bottom.

    python tests/integration/readme.py [--install]

With --install the `pip install .` lines are run too (from the project's root), so that a clean
virtual environment needs nothing but this script. Needs no test library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands(text: str) -> list[str]:
    """The lines of all ```sh blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def make_photos(folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from samples import image_folder

    image_folder(folder, classes=3, images=40, size=(96, 80))


def follow(install: bool = False, document: Path = ROOT / "README.md") -> list[str]:
    """Run the commands of a document; what each printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed = []
    with tempfile.TemporaryDirectory(prefix="newcomer-") as place:
        for command in commands(document.read_text()):
            is_install = command.startswith("pip install")
            if is_install and not install:
                continue
            if not is_install and not Path(place, "photos").exists():
                make_photos(Path(place, "photos"))
            print(f"$ {command}", flush=True)
            done = subprocess.run(
                ["bash", "-ec", command],
                cwd=ROOT if is_install else place,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
            )
            print(done.stdout if not is_install else "", done.stderr, sep="", flush=True)
            if done.returncode:
                raise SystemExit(
                    f"a command of {document.name} failed ({done.returncode}): {command}"
                )
            printed.append(done.stdout)
    return printed


if __name__ == "__main__":
    follow(install="--install" in sys.argv)
