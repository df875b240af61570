"""One folder in every form that can be packed, and real `stoker pack` processes."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from samples import picture
from stoker.data.dataset import Dataset
from stoker.data.seal import CACHES

Member = tuple[str, bytes]
TAR_MODES = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}


class Unseekable(io.RawIOBase):
    """A pipe in memory: a writer can neither seek in it nor ask for its position."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written += data
        return len(data)


def jpeg(label: int, number: int, size: tuple[int, int] = (24, 20)) -> bytes:
    file = io.BytesIO()
    picture(label, number, size).save(file, "JPEG")
    return file.getvalue()


def members(classes: int = 2, images: int = 6, prefix: str = "") -> list[Member]:
    """Names and bytes of a few images, a class a folder."""
    return [
        (f"{prefix}class{label}/{number:03d}.jpg", jpeg(label, number))
        for label in range(classes)
        for number in range(images)
    ]


def files_below(root: Path) -> list[Member]:
    """Every file of a folder, as members of an archive of it."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return [(path.relative_to(root).as_posix(), path.read_bytes()) for path in paths]


def as_folder(root: Path, listed: list[Member]) -> Path:
    for name, data in listed:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def as_tar(listed: list[Member], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=form) as tar:  # type: ignore[call-overload]
        for name, data in listed:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def as_zip(
    listed: list[Member],
    method: int = zipfile.ZIP_DEFLATED,
    *,
    piped: bool = False,
    wide: bool = False,
) -> bytes:
    """A zip; `piped` as one that was written to a pipe, `wide` with sizes of 64 bits."""
    file: Any = Unseekable() if piped else io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in listed:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = method
            with archive.open(entry, "w", force_zip64=wide) as member:
                member.write(data)
    return bytes(file.written) if piped else file.getvalue()


def archives(listed: list[Member]) -> dict[str, bytes]:
    """The same files in every kind of archive, by suffix."""
    tars = {suffix: as_tar(listed, mode) for suffix, mode in TAR_MODES.items()}
    return {**tars, "zip": as_zip(listed)}


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder, hidden ones too; caches belong to no set."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in CACHES
    }


def shards(packed: Path) -> dict[str, str]:
    """The hashes of a set's shards alone."""
    return {name: value for name, value in contents(packed).items() if name.endswith(".tar")}


def same_set(one: Path, two: Path) -> bool:
    """Whether two sets hold the same shards and number their classes alike."""
    return (
        shards(one) == shards(two)
        and Dataset(one).classes == Dataset(two).classes
        and Dataset(one).fingerprint == Dataset(two).fingerprint
    )


def start_pack(
    source: str | Path, out: Path, *flags: str, piped: Path | None = None
) -> subprocess.Popen[str]:
    """`stoker pack` in a process group of its own; `piped` is its standard input."""
    stdin: IO[bytes] | int = piped.open("rb") if piped else subprocess.DEVNULL
    command = [sys.executable, "-m", "stoker", "pack", str(source), str(out)]
    command += ["--spot-notice", "off", *flags]
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    finally:
        if not isinstance(stdin, int):
            stdin.close()


def run_pack(
    source: str | Path, out: Path, *flags: str, piped: Path | None = None
) -> tuple[int, str]:
    """Run `stoker pack` to its end; returns the exit code and everything it printed."""
    process = start_pack(source, out, *flags, piped=piped)
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def flipped(data: bytes, offset: int, bits: int = 0x01) -> bytes:
    changed = bytearray(data)
    changed[offset] ^= bits
    return bytes(changed)


def cuts(data: bytes, step: int) -> Iterator[bytes]:
    """A file as downloads that broke off would leave it."""
    return (data[:end] for end in range(step, len(data), step))
