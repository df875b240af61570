"""Which folders of a run are complete checkpoints. Needs no torch, so a launcher can ask.

Invariants: a checkpoint counts only where its marker holds the hash of its manifest and everything
in the manifest has the type, range and size that this version writes. Only plain files with known
names are opened. A newer format is not damage: it raises NewerFormat.
"""

from __future__ import annotations

import errno
import json
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.commit import sha256_file, sha256_of
from stoker.errors import BadRequest, NewerFormat, StokerError, is_readable
from stoker.host.plain_file import LARGEST_JSON, read_plain
from stoker.text import shown

FORMAT = 1
"""Format number of a checkpoint. A manifest.json without one has format 1."""
MARKER = "COMMITTED"
TORN, DIVERGED = ".torn", ".diverged"
"""Endings of folders that were set aside, see survive/checkpoints.py."""
FILES = ("weights.safetensors", "ema.safetensors", "state.pt")
REQUIRED = ("weights.safetensors", "state.pt")
NAME = re.compile(r"\d{9,}(-\d+)?")
COUNTS = ("step", "position", "evaluated", "stale")
LARGEST_LINE = 100
"""Bytes of a marker, and of a file that names a checkpoint."""


def step_and_save(name: str) -> tuple[int, int]:
    """The step in a checkpoint's name, and which save of this step it is, counting from 1."""
    step, _, count = name.partition("-")
    return int(step), int(count or 1)


def names_in(folder: Path) -> list[str]:
    """The names of all checkpoints in a folder, newest first, valid or not."""
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    return sorted(filter(NAME.fullmatch, names), key=step_and_save, reverse=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises StokerError with the reason where it is incomplete or
    wrong, NewerFormat where a newer version wrote it, OSError where it cannot be read."""
    text, mark = small_file(folder / "manifest.json"), small_file(folder / MARKER, LARGEST_LINE)
    if mark != sha256_of(text).encode():
        raise incomplete(folder, f"{MARKER} is not the hash of manifest.json")
    files = [path for name in FILES if (path := folder / name).is_file()]
    sizes = {path.name: path.stat().st_size for path in files}
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise incomplete(folder, "manifest.json is not JSON") from error
    if not isinstance(manifest, dict):
        raise incomplete(folder, "manifest.json is not a JSON object")
    number = manifest.get("format", 1)
    if not is_readable(folder, number, FORMAT):
        raise incomplete(folder, f"its format is {quoted(number)}")
    if reason := wrong_files(manifest.get("files"), sizes) or wrong_numbers(manifest, folder.name):
        raise incomplete(folder, reason)
    return manifest


def small_file(path: Path, most: int = LARGEST_JSON) -> bytes:
    """A file of a checkpoint. Raises as `read_manifest` does."""
    try:
        return read_plain(path, most)
    except (FileNotFoundError, NotADirectoryError) as error:
        # Any other OSError says nothing about the checkpoint.
        raise incomplete(path.parent, f"{path.name}: {error.strerror}") from error
    except ValueError as error:
        raise incomplete(path.parent, f"{path.name}: {error}") from error


def incomplete(folder: Path, reason: str) -> StokerError:
    return StokerError(f"{folder} is not a complete checkpoint: {reason}")


def quoted(value: object) -> str:
    """A value from a manifest, short and printable."""
    return shown(repr(value)[:60])


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def wrong_files(files: object, sizes: dict[str, int]) -> str:
    """What is wrong with the list of files; empty where nothing is."""
    if not isinstance(files, dict):
        return "manifest.json lists no files"
    for name, facts in files.items():
        if name not in FILES:  # a manifest from elsewhere must not name files outside its folder
            return f"manifest.json lists a file {quoted(name)}"
        if not isinstance(facts, dict) or not isinstance(facts.get("sha256"), str):
            return f"manifest.json has no hash of {name}"
        if not is_count(size := facts.get("bytes")) or sizes.get(name) != size:
            return f"{name} has {sizes.get(name, 'no')} bytes, manifest.json says {quoted(size)}"
    missing = [name for name in REQUIRED if name not in files]
    return f"manifest.json does not list {missing[0]}" if missing else ""


def wrong_numbers(manifest: dict[str, Any], name: str) -> str:
    """What is wrong with the position of a checkpoint; empty where nothing is."""
    for key in COUNTS:
        if not is_count(value := manifest.get(key, 0)):
            return f"its {key} is {quoted(value)}"
    best = manifest.get("best", 0.0)
    if isinstance(best, bool) or not isinstance(best, int | float) or not math.isfinite(best):
        return f"its best result is {quoted(best)}"
    if NAME.fullmatch(name) and step_and_save(name)[0] != manifest.get("step"):
        return f"its step is {quoted(manifest.get('step'))}"
    return ""


def evaluated_file(manifest: dict[str, Any]) -> str:
    """The file with the weights that evaluation uses: the moving average, where there is one."""
    return "ema.safetensors" if "ema.safetensors" in manifest["files"] else "weights.safetensors"


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; None where it is incomplete or wrong. Raises NewerFormat where
    a newer version wrote it, OSError where it cannot be read."""
    try:
        return read_manifest(folder)
    except NewerFormat:
        raise
    except StokerError:
        return None


def check_hashes(folder: Path) -> dict[str, Any]:
    """The manifest, once every file has its hash. Raises as `read_manifest` does, and StokerError
    where a hash differs."""
    manifest = read_manifest(folder)
    for name, facts in manifest["files"].items():
        if sha256_file(folder / name) != facts["sha256"]:
            raise damaged(folder / name)
    return manifest


def newest_intact(folder: Path) -> tuple[tuple[str, int] | None, dict[str, str]]:
    """Name and position of the newest checkpoint with every hash right, and why each newer one does
    not count. Raises NewerFormat where a newer version wrote one of them, StokerError where the
    disk fails."""
    reasons: dict[str, str] = {}
    for name in names_in(folder):
        try:
            return (name, check_hashes(folder / name)["position"]), reasons
        except NewerFormat:
            raise
        except StokerError as error:
            reasons[name] = str(error)
        except OSError as error:
            raise unreadable(folder / name, error) from error
    return None, reasons


def problem_of(folder: Path) -> str:
    """Why a folder is no checkpoint with every hash right; empty where it is one. Raises
    NewerFormat where a newer version wrote it."""
    try:
        check_hashes(folder)
    except NewerFormat:
        raise
    except (StokerError, OSError) as error:
        return str(error)
    return ""


def unreadable(folder: Path, error: OSError) -> StokerError:
    advice = "try again, or remove this folder to resume from the checkpoint before it"
    if error.errno == errno.ENOMEM:
        advice = "use a machine with more memory"
    return StokerError(f"cannot read {folder}: {error}; {advice}")


def pointer(path: Path) -> str | None:
    """The name in a file `last` or `best`; None where there is no valid one."""
    with suppress(OSError, ValueError):
        name = read_plain(path, LARGEST_LINE).decode().strip()
        return name if NAME.fullmatch(name) else None
    return None


def checkpoint_folder(run_path: Path, which: str) -> Path:
    """The folder of a checkpoint: best (the newest where nothing was evaluated), last, or its name.
    Raises BadRequest where there is none."""
    checkpoints = run_path / "checkpoints"
    if which not in ("best", "last"):
        if not NAME.fullmatch(which) or not (checkpoints / which).is_dir():
            raise BadRequest(
                f"--checkpoint {shown(which)}: {checkpoints} has no such checkpoint; take best, "
                "last or one of its folders"
            )
        return checkpoints / which
    if which == "best" and (name := pointer(run_path / "best")) and (checkpoints / name).is_dir():
        return checkpoints / name
    newest, reasons = newest_intact(checkpoints)
    if newest is None:
        reason = next(iter(reasons.values()), "it has none yet")
        raise BadRequest(f"{run_path} has no checkpoint to use: {reason}")
    return checkpoints / newest[0]


def damaged(path: Path) -> StokerError:
    return StokerError(f"{path} is damaged: its hash is not the one in the manifest")
