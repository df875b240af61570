"""A folder that may be removed while it is read.

Invariant: as long as the folder is held, its files are there, also where it is removed by then.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.commit import UNABLE, remove

HELD = ".uploading"


@contextmanager
def held_folder(run: Path, folder: Path) -> Iterator[Path]:
    """A folder of the same name and files, by links in the run directory; the folder itself on a
    disk without links. Raises OSError where it is gone already."""
    remove(run / HELD)
    try:
        yield linked(folder, run / HELD / folder.name)
    finally:
        remove(run / HELD)


def linked(folder: Path, held: Path) -> Path:
    """Make `held` a folder with the files of another one, and return it; the other one where there
    can be no links."""
    held.mkdir(parents=True)
    try:
        for path in folder.iterdir():
            if path.is_file() and not path.is_symlink():
                os.link(path, held / path.name)
    except OSError as error:
        if error.errno not in (*UNABLE, errno.EMLINK):
            raise
        return folder
    return held
