"""A working directory full of modules that nothing may import: each notes its name and then fails.

The names are those of the standard library, of every installed package, and of Stoker itself.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

NOTES = "imported.txt"
_NOTE = "open({notes!r}, 'a').write(__name__ + '\\n')\nraise SystemExit(0)\n"
_SCRIPT = """
import re
import sys
from stoker.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""


def hostile_folder(folder: Path, *, except_for: frozenset[str] = frozenset()) -> Path:
    """A new folder with these modules. Their notes are a file beside it: see `imported`."""
    folder.mkdir(parents=True)
    code = _NOTE.format(notes=str(folder.parent / NOTES))
    names = {*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize"}
    for name in sorted(names - except_for):
        if name.isidentifier() and name not in sys.builtin_module_names:
            (folder / f"{name}.py").write_text(code)
    if "stoker" not in except_for:
        (folder / "stoker").mkdir()
        for name in ("__init__", "__main__", "cli"):
            (folder / "stoker" / f"{name}.py").write_text(code)
    return folder


def imported(folder: Path) -> list[str]:
    """The modules of a hostile folder that any process has imported."""
    notes = folder.parent / NOTES
    return notes.read_text().split() if notes.exists() else []


def imported_by_python_m(folder: Path) -> frozenset[str]:
    """What `python -m`, or the script that pip writes, imports before the first line of Stoker."""
    (folder / "first_line.py").write_text("import re, sys; print(*sys.modules)")
    command = [sys.executable, "-m", "first_line"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return frozenset(name.split(".")[0] for name in done.stdout.split())


def stoker_command(folder: Path) -> list[str]:
    """The command `stoker`, as pip writes it, in a folder of its own."""
    script = folder / "bin" / "stoker"
    script.parent.mkdir(parents=True)
    script.write_text(_SCRIPT)
    return [sys.executable, str(script)]
