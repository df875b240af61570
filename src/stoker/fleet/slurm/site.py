"""The site file, `slurm.toml`: what every job of a cluster needs.

    setup = ["module load cuda/12", "source ~/venv/bin/activate"]

    [sbatch]
    partition = "gpu"
    account = "lab"
    exclusive = true

Invariants: setup lines are shell code of the user's own, so a file that the user did not name is
used only if the user or root owns it and no other user can write to it. No value holds a control
character.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from stoker.errors import BadRequest
from stoker.host.plain_file import read_given
from stoker.text import shown

NAME = "slurm.toml"
USUAL = Path(".config") / "stoker" / NAME
"""Below the user's home."""
LARGEST_FILE = 1 << 20
OPTION = re.compile(r"[a-z][a-z0-9-]*")
OURS = {
    "array": "'stoker sweep --on slurm' and 'stoker pack --on slurm' submit arrays",
    "no-requeue": "a job that stopped with everything saved is queued again",
    "open-mode": "a job that is queued again appends to its output",
    "output": "the output is in the job's folder",
    "error": "errors are in the job's output",
    "test-only": "--dry-run prints the batch file",
    "wait": "'stoker sweep' and 'stoker pack' have a --wait of their own",
    "wrap": "the command stands after --",
}
"""Options of sbatch that a job cannot have, and why."""


@dataclass(frozen=True)
class Site:
    """The options of sbatch and the first lines of every job."""

    path: Path | None = None
    options: dict[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()


def find_site(named: str | None) -> Site:
    """The site file that is named, else the one of the working directory, else the user's own, else
    none. Raises BadRequest where it cannot be used."""
    if named is not None:
        return read_site(Path(named))
    home = os.environ.get("HOME")
    for path in (Path(NAME), *([Path(home) / USUAL] if home else [])):
        if path.is_file():
            require_owner(path)
            return read_site(path)
    return Site()


def require_owner(path: Path) -> None:
    """Raise BadRequest for a file that another user could have written."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH:
        raise BadRequest(
            f"{shown(str(path))} could be another user's, and its setup lines run as yours: read "
            f"it, then name it with --site {shown(str(path))}"
        )


def read_site(path: Path) -> Site:
    """Raises BadRequest where the file cannot be read or says something else."""
    name = shown(str(path))
    try:
        table = tomllib.loads(read_given(path, LARGEST_FILE).decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"cannot read the site file {name}: {reason}") from error
    for key in table:
        if key not in ("sbatch", "setup"):
            raise BadRequest(f"{name} has '{shown(key)}': a site file has [sbatch] and setup")
    setup, options = table.get("setup", []), table.get("sbatch", {})
    if not isinstance(setup, list) or not all(isinstance(line, str) for line in setup):
        raise BadRequest(f"{name}: setup must be a list of lines, such as ['module load cuda']")
    if not isinstance(options, dict):
        raise BadRequest(f"{name}: [sbatch] must be a table of options")
    for line in setup:
        require_printable(f"a setup line of {name}", line)
    return Site(path, checked_options(options, name), tuple(setup))


def checked_options(options: dict[str, object], where: str) -> dict[str, str]:
    """Options of sbatch by their long names; a flag has an empty value. Raises BadRequest for one
    that no job can have."""
    values: dict[str, str] = {}
    for name, value in options.items():
        if not OPTION.fullmatch(name):
            raise BadRequest(f"{where}: '{shown(name)}' is no long option of sbatch")
        if name in OURS:
            raise BadRequest(f"{where}: '{name}' cannot be set: {OURS[name]}")
        if value is False:
            continue
        if not isinstance(value, str | int):
            raise BadRequest(f"{where}: {name} must be a text, a whole number, true or false")
        values[name] = "" if value is True else str(value)
        require_printable(f"{where}: {name}", values[name])
    return values


def require_printable(place: str, text: str) -> None:
    """Raise BadRequest for line breaks and control characters: they would be lines of their own in
    the batch file, or hide what it says."""
    if not text.isprintable():
        raise BadRequest(f"{place} has a line break or a control character: '{shown(text)}'")
