"""Names and things in a folder that are no plain files: links, devices, odd names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hostile import KEPT, PLAIN, STRANGE, UNKNOWN
from hostile_jpeg import jpeg

NOT_REGULAR = "passed over: not a regular file"
THINGS = "link to a folder, to nothing or in a ring; FIFO, socket, device"
NOT_BY_NAME = "name without an image's suffix"
HOUSEKEEPING = "hidden file or folder, `__MACOSX`"
OUTSIDE = "file outside class folders"
TOO_DEEP = "folder that cannot be listed: no right to, or a path over 4096 bytes"
LINKED = "link to a file: what it leads to counts, wherever it lies"
NO_RIGHT = "file that cannot be read"


@dataclass(frozen=True)
class Entry:
    """A thing in a class folder, and what becomes of it."""

    name: str | bytes
    make: Callable[[Path], object]
    """Puts it at a path; raises PermissionError or OSError where this machine cannot."""
    outcome: str
    found: str
    below: str = ""
    """What is listed, where it is not the entry itself."""


def picture(path: Path) -> None:
    path.write_bytes(jpeg())


def link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def listening(path: Path) -> None:
    """A socket's name stays when nobody listens any more. Names are short: bind from inside."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def device(path: Path) -> None:
    os.mknod(path, 0o20666, os.makedev(1, 5))


def unreadable(path: Path) -> None:
    if os.geteuid() == 0:
        raise PermissionError("root reads everything")
    picture(path)
    path.chmod(0)


def nested(levels: int, name: str = "d" * 20) -> Callable[[Path], object]:
    """Folders inside folders with a picture at the bottom, also deeper than a path may be long."""

    def make(path: Path) -> None:
        path.mkdir()
        here = os.open(path, os.O_RDONLY)
        for _ in range(levels):
            os.mkdir(name, dir_fd=here)
            here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
            os.close(above)
        file = os.open("bottom.jpg", os.O_CREAT | os.O_WRONLY, dir_fd=here)
        os.write(file, jpeg())
        os.close(file)
        os.close(here)

    return make


def folder_with(name: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.mkdir()
        picture(path / name)

    return make


ENTRIES = [
    Entry(b"not-utf8-\xff\xfe.jpg", picture, KEPT, PLAIN),
    Entry("new\nline.jpg", picture, KEPT, PLAIN),
    Entry("escape-\x1b[31m-red.jpg", picture, KEPT, PLAIN),
    Entry("right-to-left-\u202egpj.jpg", picture, KEPT, PLAIN),
    Entry("--out", picture, "passed over: not an image by its name", NOT_BY_NAME),
    Entry("--out.jpg", picture, KEPT, PLAIN),
    Entry("-rf.jpg", picture, KEPT, PLAIN),
    Entry("$(touch owned).jpg", picture, KEPT, PLAIN),
    Entry("..jpg.JPG", picture, "passed over: hidden", HOUSEKEEPING),
    Entry("x" * 251 + ".jpg", picture, KEPT, PLAIN),
    Entry("C:\\..\\evil.jpg", picture, KEPT, PLAIN),
    Entry("folder.jpg", folder_with("in.jpg"), KEPT, PLAIN, "/in.jpg"),
    Entry("deep", nested(100), KEPT, PLAIN, ("/" + "d" * 20) * 100 + "/bottom.jpg"),
    Entry("too-deep", nested(300), "passed over: cannot list", TOO_DEEP),
    Entry("ring.jpg", link("ring.jpg"), NOT_REGULAR, THINGS),
    Entry("ring-of-folders", link("."), NOT_REGULAR, THINGS),
    Entry("up.jpg", link(".."), NOT_REGULAR, THINGS),
    Entry("nowhere.jpg", link("/nowhere/at-all.jpg"), NOT_REGULAR, THINGS),
    Entry("zeros.jpg", link("/dev/zero"), NOT_REGULAR, THINGS),
    Entry("passwords.jpg", link("/etc/passwd"), UNKNOWN, STRANGE),
    Entry("another.jpg", link("plain.jpg"), KEPT, LINKED),
    Entry("pipe.jpg", os.mkfifo, NOT_REGULAR, THINGS),
    Entry("pipe-linked.jpg", link("pipe.jpg"), NOT_REGULAR, THINGS),
    Entry("socket.jpg", listening, NOT_REGULAR, THINGS),
    Entry("device.jpg", device, NOT_REGULAR, THINGS),
    Entry("unreadable.jpg", unreadable, "rejected: cannot read", NO_RIGHT),
    Entry(".hidden.jpg", picture, "passed over: hidden", HOUSEKEEPING),
    Entry("__MACOSX", folder_with("._a.jpg"), "passed over: hidden", HOUSEKEEPING),
    Entry("notes.txt", picture, "passed over: not an image by its name", NOT_BY_NAME),
]
