"""Whether this machine can build the compiled extra."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path


def compiler() -> str | None:
    named = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(named) or shutil.which("cc")


def compiles(source: str, folder: Path) -> bool:
    file = folder / "trial.c"
    file.write_text(source)
    command = [str(compiler()), "-fsyntax-only", f"-I{sysconfig.get_path('include')}", str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def cannot_build(folder: Path, *modules: str) -> str:
    """Why the extra cannot be built here, in a word about what to install; empty where it can."""
    if compiler() is None:
        return "no C compiler: apt-get install gcc"
    if not compiles("#include <Python.h>\n", folder):
        return "no Python headers: apt-get install python3-dev"
    if not compiles("#include <stdio.h>\n#include <jpeglib.h>\n", folder):
        return "no headers of libjpeg-turbo: apt-get install libjpeg62-turbo-dev"
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""
