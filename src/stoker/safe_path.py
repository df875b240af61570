"""Modules are never imported from the working directory: it may hold anybody's files.

Invariants: the command `stoker` and every process that it starts import from where Python and its
packages are installed, and from what the user names in PYTHONPATH. A program that uses Stoker as a
library keeps its import path. This module imports only what Python has loaded before.
"""

import os
import sys

SAFE = "PYTHONSAFEPATH"
"""The variable by which Python (3.11 and later) leaves the working directory out of its path."""


def is_command(argv: list[str], orig_argv: list[str]) -> bool:
    """Whether this process is `stoker ...` or `python -m stoker ...`, given sys.argv and
    sys.orig_argv, rather than a program that imports the library."""
    if argv[:1] == ["-m"]:  # until Python knows the file that it runs
        return orig_argv[-len(argv)] in ("stoker", "-mstoker")
    return bool(argv) and os.path.basename(argv[0]) == "stoker"


def drop_working_directory(
    paths: list[str], variables: "os._Environ[str] | dict[str, str]", here: str, *, first: bool
) -> None:
    """Remove the working directory from an import path, and from that of every process which gets
    these variables: the first entry, where Python put it there, and empty entries of PYTHONPATH.
    What the user names, such as `.`, remains."""
    if first and paths[:1] == [here]:
        del paths[0]
    text = variables.pop("PYTHONPATH", "")
    if named := [entry for entry in text.split(os.pathsep) if entry]:
        variables["PYTHONPATH"] = os.pathsep.join(named)
    # Python has made the entries absolute, and each occurs once.
    if os.pathsep.join(named) != text and here not in map(os.path.abspath, named) and here in paths:
        paths.remove(here)
    variables[SAFE] = "1"


def protect_command() -> None:
    """Drop the working directory, if this process is the command. It may have been removed."""
    if is_command(sys.argv, sys.orig_argv):
        here = os.getcwd() if os.path.isdir(".") else ""
        first = sys.argv[0] == "-m" and not sys.flags.safe_path
        drop_working_directory(sys.path, os.environ, here, first=first)
