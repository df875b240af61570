"""The records of a run in an object store.

    head.json                                  who trains the run, its checkpoints, its small files
    files/SHA256.ID                            a small file, such as run.json
    attempts/0001/rank0.jsonl/000000-004096    the bytes from 0 to 4096 of a file that only grows
    checkpoints/000001234.ID/                  a checkpoint, see stores/commit_folder.py

Invariants: an object, once written, is never written again with other bytes: what changes is the
head alone, by one conditional write. An object that the head does not name, and that only its own
writer could make it name, may be deleted. So a reader that has the head has a consistent run, and a
process that has lost its lease changes nothing that counts. Names that come from a store are
checked before they become paths. What arrives is compared with its hash or its length.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.commit import remove, sha256_file, sha256_of, write_bytes
from stoker.stores.objects import Missing, Objects, StoreError
from stoker.survive.manifest import NAME

CONTENT_FORMAT = 1
LARGEST_FILE = 64 << 20
"""Bytes of a small file; a larger one is not copied."""
LARGEST_FILES = 1 << 30
"""Bytes of all small files."""
INLINE = 200
"""Bytes up to which a file is part of the head itself."""
MOST_ATTEMPTS = 1_000_000
MOST_PARTS = 64
"""Segments of a file from which on small ones become one."""
TRIES = 3
"""How often segments are listed that are made into one while they are read."""
GROWING = re.compile(
    r"(attempts/[0-9]{4,6}/rank[0-9]{1,6}(\.summary)?|leases/[0-9]{6,9})\.jsonl", re.ASCII
)
STATE = re.compile(
    r"(run|remedies|evaluation)\.json|recipe(-[0-9]{1,6})?\.toml|last|best|report\.html"
    r"|model(-[0-9]{1,6})?\.py",
    re.ASCII,
)
FILE = re.compile(
    rf"{STATE.pattern}|trouble/[0-9]{{1,12}}/rank[0-9]{{1,6}}\.json"
    r"|attempts/[0-9]{4,6}/[\w-]{1,60}\.(json|txt)",
    re.ASCII,
)
"""Names of files that are copied; others, such as locks and logs, stay on their machine."""
POINTERS = ("last", "best")
"""Files that name a checkpoint."""
SEGMENT = re.compile(r"(.{1,200})/([0-9]{12,18})-([0-9]{12,18})", re.ASCII)
ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Segment:
    """Some bytes of a file that only grows."""

    key: str
    begin: int
    end: int


@dataclass
class Content:
    """What the head of a run says, in the types that this version writes."""

    run_id: str = ""
    """Tells this run from another one that was at the same location; empty before it begins."""
    attempt: int = 0
    """The newest attempt that was begun."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each small file its hash, bytes and id, or its text."""
    checkpoints: dict[str, str] = field(default_factory=dict)
    """For each committed checkpoint the folder in the store."""

    @classmethod
    def of(cls, content: dict[str, Any], place: str) -> Content:
        """Raises StoreError where it is not the content of a run."""
        if not content:
            return cls()
        fields = [content.get(name) for name in ("run_id", "attempt", "files", "checkpoints")]
        if content.get("run_format") != CONTENT_FORMAT or not is_content(*fields):
            raise StoreError(f"{place}/head.json is not that of a run: name another location")
        return cls(*fields)  # type: ignore[arg-type]

    def data(self) -> dict[str, Any]:
        return {"run_format": CONTENT_FORMAT, **vars(self)}

    @property
    def keys(self) -> set[str]:
        """The objects of the small files."""
        return {file_key(entry) for entry in self.files.values() if "id" in entry}


def is_content(run_id: object, attempt: object, files: object, checkpoints: object) -> bool:
    """Whether these are what the head of a run says."""
    return (
        isinstance(run_id, str)
        and bool(ID.fullmatch(run_id))
        and is_count(attempt, MOST_ATTEMPTS)
        and isinstance(files, dict)
        and isinstance(checkpoints, dict)
        and all(is_entry(name, entry) for name, entry in files.items())
        and sum(entry.get("bytes", 0) for entry in files.values()) <= LARGEST_FILES
        and all(is_checkpoint(name, prefix) for name, prefix in checkpoints.items())
    )


def is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def is_entry(name: str, entry: object) -> bool:
    if not FILE.fullmatch(name) or not isinstance(entry, dict):
        return False
    if "text" in entry:
        return entry.keys() == {"text"} and is_short(entry["text"])
    digest, number = entry.get("sha256"), entry.get("id")
    return (
        isinstance(digest, str)
        and bool(re.fullmatch("[0-9a-f]{64}", digest))
        and isinstance(number, str)
        and bool(ID.fullmatch(number))
        and is_count(entry.get("bytes"), LARGEST_FILE)
    )


def is_short(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and len(text) <= INLINE


def is_checkpoint(name: str, prefix: object) -> bool:
    pattern = rf"checkpoints/{re.escape(name)}\.[0-9a-f]{{16}}"
    return (
        bool(NAME.fullmatch(name))
        and name.isascii()
        and len(name) <= 30
        and isinstance(prefix, str)
        and bool(re.fullmatch(pattern, prefix))
    )


def plain_files(run: Path) -> Iterator[tuple[str, Path]]:
    """The files of a run directory outside its checkpoints, by their names in the store."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if not name.startswith("checkpoints/") and path.is_file() and not path.is_symlink():
            yield name, path


def file_key(entry: dict[str, Any]) -> str:
    """The object of a small file. No two writes share one: so what a process deletes is its own."""
    return f"files/{entry['sha256']}.{entry['id']}"


def push_files(objects: Objects, run: Path, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Upload the small files that differ from those known; returns the entries of all. Raises
    StoreError."""
    entries: dict[str, Any] = {}
    for name, path in plain_files(run):
        if not FILE.fullmatch(name) or path.stat().st_size > LARGEST_FILE:
            continue
        data = path.read_bytes()
        entry = entry_of(data)
        before = known.get(name, {})
        if "sha256" in entry and before.get("sha256") == entry["sha256"]:
            entry = before
        elif "sha256" in entry:
            entry["id"] = secrets.token_hex(8)
            objects.write(file_key(entry), data)
        entries[name] = entry
    return entries


def keep_pointers(
    files: dict[str, Any], before: dict[str, Any], there: Collection[str], gone: Collection[str]
) -> set[str]:
    """Have the pointers in `files` name what is in the store: one to a checkpoint that is yet to be
    uploaded stays what it was before. Returns the checkpoints that such pointers still need."""
    needed = set()
    for name in POINTERS:
        target = files.pop(name, {}).get("text", "").strip()
        earlier = before.get(name, {}).get("text", "").strip()
        if target in there and target not in gone:
            files[name] = {"text": target}
        elif target and target not in there and earlier in there:
            files[name] = {"text": earlier}
            needed.add(earlier)
    return needed


def entry_of(data: bytes) -> dict[str, Any]:
    """What the head says of a small file, without the id of its object."""
    if len(data) <= INLINE and data.isascii():
        return {"text": data.decode()}
    return {"sha256": sha256_of(data), "bytes": len(data)}


def pull_files(
    objects: Objects, run: Path, files: dict[str, dict[str, Any]], *, own: bool = False
) -> None:
    """Bring the small files of a folder to what the head says. Where the folder is `own`, it has
    newer ones, and only what is missing is taken. Raises StoreError, OSError."""
    for name, entry in files.items():
        path = run / name
        if path.is_file() and (own or is_file_of(path, entry)):
            continue
        if "text" in entry:
            data = entry["text"].encode()
        else:
            data, _ = objects.read(file_key(entry), LARGEST_FILE)
            if sha256_of(data) != entry["sha256"]:
                raise StoreError(f"{objects.location}: {name} is damaged in the store")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
    for name, path in [] if own else list(plain_files(run)):
        if STATE.fullmatch(name) and name not in files:
            remove(path)  # of an attempt that the store does not know


def is_file_of(path: Path, entry: dict[str, Any]) -> bool:
    """Whether a file is the one that an entry tells of."""
    if "text" in entry:
        return path.stat().st_size <= INLINE and bool(path.read_bytes() == entry["text"].encode())
    return path.stat().st_size == entry["bytes"] and bool(sha256_file(path) == entry["sha256"])


def segments(objects: Objects, below: str = "") -> dict[str, list[Segment]]:
    """The segments in a store by file, in their order; those that do not follow are left out."""
    files: dict[str, list[Segment]] = {}
    folders = [below] if below else ["attempts", "leases"]
    for item in [item for folder in folders for item in objects.list(folder)]:
        match = SEGMENT.fullmatch(item.key)
        if not match or not GROWING.fullmatch(match[1]):
            continue
        part = Segment(item.key, int(match[2]), int(match[3]))
        if 0 < part.end - part.begin == item.bytes <= LARGEST_FILE:
            files.setdefault(match[1], []).append(part)
    return {name: chain_of(parts) for name, parts in files.items()}


def chain_of(parts: list[Segment]) -> list[Segment]:
    """The segments from byte 0 on that follow each other; of several with one begin the longest."""
    chain: list[Segment] = []
    for part in sorted(parts, key=lambda part: (part.begin, -part.end)):
        if part.begin == (chain[-1].end if chain else 0):
            chain.append(part)
    return chain


def segment_of(name: str, begin: int, end: int) -> Segment:
    return Segment(f"{name}/{begin:012d}-{end:012d}", begin, end)


def push_segments(objects: Objects, name: str, path: Path, chain: list[Segment]) -> None:
    """Upload the whole lines of a growing file that are not in its chain, and add them to that.
    Many small segments become one. Raises StoreError, OSError."""
    with path.open("rb") as file:
        while True:
            begin = chain[-1].end if chain else 0
            file.seek(begin)
            data = file.read(LARGEST_FILE)
            data = data[: data.rfind(b"\n") + 1]
            if not data:
                break
            part = segment_of(name, begin, begin + len(data))
            objects.write(part.key, data)
            chain.append(part)
        if len(chain) < MOST_PARTS:
            return
        last = [part for part in chain if chain[-1].end - part.begin <= LARGEST_FILE]
        if len(last) > MOST_PARTS // 2:
            whole = segment_of(name, last[0].begin, last[-1].end)
            file.seek(whole.begin)
            objects.write(whole.key, file.read(whole.end - whole.begin))
            chain[-len(last) :] = [whole]
            objects.delete([part.key for part in last])


def pull_segments(objects: Objects, run: Path) -> None:
    """Bring the growing files of a folder up to what is in the store. One that is longer here
    stays: only the machine that writes it can have more of it. Raises StoreError, OSError."""
    for tries in range(TRIES, 0, -1):
        try:
            for name, chain in segments(objects).items():
                pull_chain(objects, run / name, chain)
            return
        except Missing:  # it has become a part of a longer one
            if tries == 1:
                raise


def pull_chain(objects: Objects, path: Path, chain: list[Segment]) -> None:
    """Add to a growing file what is in its segments. Raises StoreError, OSError."""
    size = path.stat().st_size if path.is_file() else 0
    if not chain or size >= chain[-1].end:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if size else "wb") as file:
        for part in chain:
            if part.end <= size:
                continue
            data, _ = objects.read(part.key, LARGEST_FILE)
            if len(data) != part.end - part.begin:
                raise StoreError(f"{objects.location}/{part.key} is damaged in the store")
            file.seek(part.begin)
            file.write(data)
