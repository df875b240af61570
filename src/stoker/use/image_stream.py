"""The images that a user names: files, folders, patterns, archives, packed sets, a list of paths.

Invariants: order follows from the words and the names alone: words in their order, a folder and a
pattern by the bytes of its names, an archive and a list as they are read. Paths are yielded one at
a time; of a folder, the names of one folder on each level are in memory. A name is data and is
opened as given; only a word on the command line that is no existing path is taken for a pattern. A
link to a folder inside a folder is not followed, so a walk ends.
"""

from __future__ import annotations

import glob
import io
import os
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.data.sources.archives import (
    BZIP2,
    GZIP,
    NO_IMAGE,
    READ_BYTES,
    XZ,
    ZSTD,
    Counted,
    Pipe,
    images_in,
    is_archive,
)
from stoker.data.sources.classes import nothing_at
from stoker.data.sources.item import Item
from stoker.data.sources.layout import is_hidden, is_image
from stoker.errors import BadRequest, StokerError
from stoker.stores.location import is_location
from stoker.text import shown

LONGEST_PATH = 1 << 16
"""Bytes of a path in a list: longer ones do not exist."""
STDIN = "-"
PIPED = "standard input"


class IgnoredCounts(list[tuple[str, str]]):
    """Counts what is passed over, by reason, instead of keeping all names."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, tuple[int, str]] = {}
        """How many, and the first name, for each reason."""

    def append(self, entry: tuple[str, str]) -> None:
        name, reason = entry
        count, example = self.counts.get(reason, (0, name))
        self.counts[reason] = count + 1, example


@dataclass(frozen=True)
class NamedImages:
    """Images in files and archives, by the words that name them. An item without bytes and without
    a reason is a file at the path that is its name."""

    words: tuple[str, ...]
    null: bool = False
    """Paths in a list end with a zero byte, not with a line."""
    ignored: IgnoredCounts = field(default_factory=IgnoredCounts)

    @property
    def count(self) -> int:
        """How many images there are; 0 where that is not known before they are read."""
        return len(self.words) if all(map(is_image_file, self.words)) else 0

    def items(self) -> Iterator[Item]:
        """Yield every image. Raises StokerError where an archive or a list is damaged."""
        for word in self.words:
            if word == STDIN:
                yield from self._from_pipe(Pipe(sys.stdin.fileno()))
            elif Path(word).is_dir():
                yield from (Item(path, None) for path in images_below(word, self.ignored))
            elif not is_image(word) and is_archive_file(word):
                yield from self._from_archive(word)
            else:
                yield Item(word, None)

    def _from_archive(self, path: str) -> Iterator[Item]:
        try:
            file = Path(path).open("rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise StokerError(f"cannot read {shown(path)}: {error.strerror}") from error
        with file:
            for item in images_in(file, shown(path), self.ignored):
                yield Item(f"{path}/{item.name}", item.data, item.reason)

    def _from_pipe(self, pipe: Pipe) -> Iterator[Item]:
        head = pipe.read(READ_BYTES)
        if begins_archive(head):
            yield from images_in(io.BufferedReader(Counted(pipe, head)), PIPED, self.ignored)
        else:
            yield from (Item(path, None) for path in listed_paths(pipe, head, self.null))


@dataclass(frozen=True)
class StoredImages:
    """The images of a packed set: those of one split, or of all."""

    dataset: Dataset
    splits: tuple[str, ...]

    @property
    def count(self) -> int:
        return sum(map(self.dataset.images, self.splits))


ImageSource = NamedImages | StoredImages


def image_sources(
    words: Sequence[str], split: str = "", *, null: bool = False
) -> list[ImageSource]:
    """What the words name, in their order; neighbours that are no packed sets share a source.
    Raises BadRequest where a word names nothing, `split` is of no set, or standard input cannot be
    a list."""
    if words.count(STDIN) > 1:
        raise BadRequest(f"{STDIN} is given twice: {PIPED} can be read once")
    if STDIN in words and sys.stdin.isatty():
        raise BadRequest(
            f"nothing is piped in: find photos -name '*.jpg' | stoker predict RUN {STDIN}"
        )
    if null and STDIN not in words:
        raise BadRequest(f"--null is for a list of paths on {PIPED}: name it with {STDIN}")
    paths = [path for word in words for path in matches(word)]
    sources: list[ImageSource] = []
    for is_set, group in groupby(paths, Dataset.is_packed):
        if is_set:
            sources += [stored_images(path, split) for path in group]
        else:
            sources.append(NamedImages(tuple(group), null))
    if split and not any(isinstance(source, StoredImages) for source in sources):
        raise BadRequest(f"--split {split} is for packed sets, and none is named")
    return sources


def stored_images(path: str, split: str) -> StoredImages:
    """The images of a packed set. Raises BadRequest for a split that it does not have."""
    dataset = Dataset(path)
    splits = dataset.description["splits"]
    if split and split not in splits:
        raise BadRequest(
            f"{dataset.name} has no split called '{split}': it has {', '.join(splits)}"
        )
    return StoredImages(dataset, (split,) if split else tuple(splits))


def matches(word: str) -> list[str]:
    """The path itself, or the paths that a pattern matches, sorted. Raises BadRequest without any.
    Of a pattern with ** folders are left out, because it matches what is in them; files that are
    neither images nor archives by their names are left out of every pattern."""
    if word == STDIN or os.path.lexists(word) or is_set_in_store(word):
        return [word]
    if glob.has_magic(word):
        deep = "**" in word
        paths = sorted(glob.glob(word, recursive=True), key=os.fsencode)  # noqa: PTH207
        chosen = [path for path in paths if is_wanted(path, deep)]
        if chosen:
            return chosen
        raise BadRequest(f"no image matches {shown(word)}")
    raise nothing_at("image, folder, archive or packed set", word)


def is_wanted(path: str, deep: bool) -> bool:
    """Whether a match of a pattern is used."""
    if Path(path).is_dir():
        return not deep
    return is_image(path) or is_archive_file(path)


def is_image_file(word: str) -> bool:
    """Whether a word stands for one image."""
    if word == STDIN or Path(word).is_dir():
        return False
    return is_image(word) or not is_archive_file(word)


def is_archive_file(path: str) -> bool:
    try:
        return Path(path).is_file() and is_archive(Path(path))
    except OSError:
        return False


def begins_archive(head: bytes) -> bool:
    """Whether the first bytes of a pipe are those of an archive; a path may begin like a weaker
    mark."""
    if head.startswith((b"PK\x03\x04", GZIP, XZ, ZSTD)):
        return True
    if head.startswith(BZIP2):
        return head[4:10] == b"1AY&SY"
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def listed_paths(pipe: Pipe, head: bytes, null: bool) -> Iterator[str]:
    """Yield each path of a list, one to a line or, with `null`, between zero bytes. Empty ones and
    the carriage returns of Windows are dropped. Raises StokerError where a path does not end."""
    end, rest = b"\0" if null else b"\n", b""
    while head:
        *whole, rest = (rest + head).split(end)
        yield from decoded(whole, null)
        if len(rest) > LONGEST_PATH:
            raise StokerError(
                f"{PIPED} is no list of paths: one is longer than {LONGEST_PATH:,} bytes"
            )
        head = pipe.read(READ_BYTES)
    yield from decoded([rest], null)


def decoded(paths: list[bytes], null: bool) -> Iterator[str]:
    for path in paths:
        name = path if null else path.removesuffix(b"\r")
        if name:
            yield os.fsdecode(name)


def images_below(root: str, ignored: IgnoredCounts) -> Iterator[str]:
    """Yield the paths of all images in a folder and the folders in it, by the bytes of their names.
    What is passed over is counted in `ignored`."""
    open_folders = [entries_of(root, ignored)]
    while open_folders:
        path, is_folder = next(open_folders[-1], ("", False))
        if not path:
            open_folders.pop()
        elif is_folder:
            open_folders.append(entries_of(path, ignored))
        else:
            yield path


def entries_of(folder: str, ignored: IgnoredCounts) -> Iterator[tuple[str, bool]]:
    """Yield the images and folders of one folder: path, and whether it is a folder."""
    try:
        with os.scandir(folder) as listing:
            kinds = [(os.fsencode(entry.name), kind_of(entry)) for entry in listing]
    except OSError as error:
        ignored.append((shown(folder), f"cannot list: {error.strerror}"))
        return
    for encoded, kind in sorted(kinds):
        name = os.fsdecode(encoded)
        path = os.path.join(folder, name)  # noqa: PTH118 - names of any bytes
        if kind in ("image", "folder"):
            yield path, kind == "folder"
        else:
            ignored.append((shown(path), kind))


def kind_of(entry: os.DirEntry[str]) -> str:
    """`folder`, `image`, or the reason why an entry is passed over."""
    if is_hidden(entry.name):
        return "hidden"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    is_link = entry.is_symlink()
    if is_link and Path(entry.path).is_dir():
        return "link to a folder: not followed"
    # DirEntry.is_file raises for a link to itself.
    if not (Path(entry.path).is_file() if is_link else entry.is_file()):
        return "not a regular file"
    return "image" if is_image(entry.name) else NO_IMAGE


def is_set_in_store(word: str) -> bool:
    """Whether a word names a location with a packed set."""
    return is_location(word) and Dataset.is_packed(word)
