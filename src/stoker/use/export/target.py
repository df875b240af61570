"""Where an export is written: a folder that appears complete or not at all.

Invariants: everything is written into a draft beside the target, and the draft is renamed. A folder
that is not an export by Stoker is never replaced or changed; one that is, only on request. A killed
export leaves a draft, which the next export to the same target removes. No torch is imported here.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.commit import remove, sync, temporary
from stoker.errors import BadRequest, StokerError
from stoker.faults import reach
from stoker.text import shown
from stoker.use.exported.files import GRAPH, PROGRAM, WEIGHTS, is_export, require_packages

FILE_OF = {"safetensors": WEIGHTS, "torch": PROGRAM, "onnx": GRAPH}
"""The formats of an export, and the file of each."""
WRITERS = ("onnx", "onnxscript", "onnxruntime")
"""The packages that an ONNX graph is written and checked with."""


def formats_of(text: str) -> list[str]:
    """The formats in the value of --to, each once. Raises BadRequest for one that is unknown, or
    whose packages are missing."""
    formats = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in formats:
        if name not in FILE_OF:
            known = ", ".join(FILE_OF)
            raise BadRequest(f"--to {shown(text)}: the formats are {known}, separated by commas")
    if "onnx" in formats:
        require_packages(*WRITERS)
    return formats


def require_target(out: Path, *, overwrite: bool) -> None:
    """Raise BadRequest where nothing can be exported to this path."""
    name = shown(str(out))
    if out.is_dir():
        empty = next(out.iterdir(), None) is None
        if not empty and not is_export(out):
            raise BadRequest(f"{name} is a folder with other files in it: name a new folder")
        if not empty and not overwrite:
            raise BadRequest(f"{name} is an export already: name a new folder, or add --overwrite")
    elif os.path.lexists(out):
        raise BadRequest(f"{name} is not a folder: name a new one")


@contextmanager
def draft_of(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new folder that becomes `out` when the block ends, and is removed where it fails. Raises
    BadRequest where `out` must not be replaced, StokerError where the disk fails."""
    out = out.resolve()
    draft = temporary(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_drafts(out)
        draft.mkdir()
        with locked(draft):
            yield draft
            sync_all(draft)
            reach("export:written")
            require_target(out, overwrite=overwrite)  # again: minutes may have passed
            publish_folder(draft, out)
    except OSError as error:
        raise StokerError(f"cannot write {shown(str(out))}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            remove(draft)


def publish_folder(draft: Path, out: Path) -> None:
    """Give a draft its name. An export that has this name is moved aside, then removed: a kill in
    between leaves it under the name of a draft."""
    aside = draft.with_suffix(".old")
    try:
        if out.is_dir():
            out.rename(aside)
            reach("export:aside")
        draft.rename(out)
    except BaseException:  # a stop request too
        if aside.is_dir() and not out.exists():
            aside.rename(out)
        raise
    sync(out.parent)
    remove(aside)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder: a draft with one is being written."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a mount without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def remove_drafts(out: Path) -> None:
    """Remove the drafts of exports that were killed. One that is being written keeps its lock."""
    for draft in drafts_of(out):
        with suppress(OSError):
            handle = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(draft)
            finally:
                os.close(handle)


def drafts_of(out: Path) -> Sequence[Path]:
    """The drafts beside a target, by their names: .NAME.PROCESS.tmp"""
    prefix, names = f".{out.name}.", []
    for item in out.parent.iterdir():
        process, _, ending = item.name.removeprefix(prefix).partition(".")
        if item.name.startswith(prefix) and process.isdecimal() and ending in ("tmp", "old"):
            names.append(item)
    return names


def sync_all(folder: Path) -> None:
    """Flush the files of a folder, and the folder, to the disk."""
    for file in folder.iterdir():
        sync(file)
    sync(folder)
