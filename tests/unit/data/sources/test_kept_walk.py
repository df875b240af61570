"""What a walk found is used again while nothing has changed, and never when something has."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from packing import same_set
from samples import image_folder
from stoker.data.packing.pack import WALK_CACHE, pack
from stoker.data.sources import folder as folder_module
from stoker.data.sources.folder import SETTLED_S, list_folder, load_walk, save_walk, walk
from stoker.errors import BadRequest

_listed: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _listed is not None and event in ("os.scandir", "os.listdir"):
        # A folder may be given by its open handle (shutil.rmtree does).
        path = arguments[0]
        _listed.append(
            str(Path(f"/proc/self/fd/{path}").resolve() if path.__class__ is int else path)
        )


@pytest.fixture(scope="module", autouse=True)
def hook() -> None:
    """An audit hook cannot be taken away again: one, which listens only when asked to."""
    sys.addaudithook(_note)


@contextmanager
def listings() -> Iterator[list[str]]:
    """Every directory that is listed meanwhile."""
    global _listed
    _listed = noted = []
    try:
        yield noted
    finally:
        _listed = None


def aged(root: Path) -> Path:
    """As if nothing below had been touched for a while."""
    long_ago = time.time() - 100
    for path in [root, *root.rglob("*")]:
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = image_folder(tmp_path / "photos", classes=2, images=4, val=2, size=(12, 10))
    (root / "train" / "class0" / "more").mkdir()
    (root / "train" / "class0" / "more" / "deep.jpg").touch()
    (root / "train" / "empty").mkdir()
    (root / "notes.txt").touch()
    return aged(root)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "kept.parquet"


def keep(root: Path, cache: Path) -> None:
    save_walk(str(root), walk(str(root)), cache)
    assert cache.exists()


class TestUsedAgain:
    def test_it_is_the_same_walk_without_one_listing(self, root: Path, cache: Path) -> None:
        keep(root, cache)
        with listings() as noted:
            again = load_walk(str(root), cache)
        assert [path for path in noted if Path(path).is_relative_to(root)] == []
        assert again == walk(str(root))
        assert list_folder(str(root), tree=again) == list_folder(str(root))

    def test_a_walk_lists_every_folder_once(self, root: Path) -> None:
        with listings() as noted:
            walk(str(root))
        folders = [path for path in [root, *root.rglob("*")] if path.is_dir()]
        assert sorted(path.rstrip("/") for path in noted) == sorted(map(str, folders))

    def test_a_second_start_lists_nothing_of_the_source(self, tmp_path: Path, root: Path) -> None:
        out = pack(root, tmp_path / "out", workers=1)
        with listings() as noted:
            pack(root, out, workers=1)
        assert [path for path in noted if Path(path).is_relative_to(root)] == []

    def test_a_pack_cut_short_lists_nothing_of_the_source(self, tmp_path: Path, root: Path) -> None:
        whole, out = pack(root, tmp_path / "whole", workers=1), tmp_path / "out"
        pack(root, out, workers=1)
        (out / "dataset.json").unlink()
        with listings() as noted:
            pack(root, out, workers=1)
        assert [path for path in noted if Path(path).is_relative_to(root)] == []
        assert same_set(out, whole)

    def test_names_that_are_not_utf8_survive(self, root: Path, cache: Path) -> None:
        odd = Path(os.fsdecode(os.fsencode(root / "train") + b"/caf\xe9"))
        odd.mkdir()
        Path(os.fsdecode(os.fsencode(odd) + b"/\xff\xfe.jpg")).touch()
        Path(os.fsdecode(os.fsencode(odd) + b"/\xfa.txt")).touch()
        keep(aged(root), cache)
        again = load_walk(str(root), cache)
        assert again == walk(str(root))
        assert again is not None
        assert "train/caf\udce9/\udcff\udcfe.jpg" in again.images["train"]["caf\udce9"]


def add_file(root: Path) -> None:
    (root / "train" / "class1" / "new.jpg").touch()


def add_file_and_set_the_time_back(root: Path) -> None:
    folder = root / "train" / "class1"
    status = folder.stat()
    add_file(root)
    os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def add_deep_file(root: Path) -> None:
    (root / "train" / "class0" / "more" / "new.jpg").touch()


def remove_file(root: Path) -> None:
    (root / "val" / "class1" / "0004.jpg").unlink()


def rename_file(root: Path) -> None:
    (root / "train" / "class0" / "0001.jpg").rename(root / "train" / "class0" / "9999.jpg")


def move_file(root: Path) -> None:
    (root / "train" / "class0" / "0001.jpg").rename(root / "train" / "class1" / "moved.jpg")


def add_class(root: Path) -> None:
    (root / "train" / "class9").mkdir()


def fill_empty_class(root: Path) -> None:
    (root / "train" / "empty" / "first.jpg").touch()


def empty_class(root: Path) -> None:
    for image in (root / "val" / "class0").iterdir():
        image.unlink()


def remove_class(root: Path) -> None:
    shutil.rmtree(root / "train" / "class1")


def rename_class(root: Path) -> None:
    (root / "train" / "class1").rename(root / "train" / "other")


def swap_classes(root: Path) -> None:
    (root / "train" / "class0").rename(root / "train" / "spare")
    (root / "train" / "class1").rename(root / "train" / "class0")
    (root / "train" / "spare").rename(root / "train" / "class1")


def add_split(root: Path) -> None:
    (root / "test" / "class0").mkdir(parents=True)


def put_a_file_in_place_of_a_folder(root: Path) -> None:
    shutil.rmtree(root / "train" / "class1")
    (root / "train" / "class1").touch()


CHANGES = [
    *(add_file, add_deep_file, remove_file, rename_file, move_file, add_class, fill_empty_class),
    *(empty_class, remove_class, rename_class, swap_classes, add_split),
    *(put_a_file_in_place_of_a_folder, add_file_and_set_the_time_back),
]


class TestNotUsedAgain:
    @pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
    def test_after_a_change(self, root: Path, cache: Path, change: Callable[[Path], None]) -> None:
        keep(root, cache)
        change(root)
        assert load_walk(str(root), cache) is None

    def test_a_changed_folder_is_another_pack(self, root: Path, tmp_path: Path) -> None:
        out = pack(root, tmp_path / "out", workers=1)
        add_file(root)
        with pytest.raises(BadRequest, match="has changed since it was packed"):
            pack(root, out, workers=1)

    def test_for_another_folder(self, root: Path, cache: Path, tmp_path: Path) -> None:
        keep(root, cache)
        twin = tmp_path / "twin"
        shutil.copytree(root, twin, copy_function=shutil.copy2)
        assert load_walk(str(twin), cache) is None

    def test_when_the_folder_is_gone(self, root: Path, cache: Path) -> None:
        keep(root, cache)
        shutil.rmtree(root)
        assert load_walk(str(root), cache) is None

    @pytest.mark.parametrize("spelling", ["{0}/", "{0}/../photos", "{0}/train/.."])
    def test_unless_it_is_only_spelt_otherwise(
        self, root: Path, cache: Path, spelling: str
    ) -> None:
        keep(root, cache)
        assert load_walk(spelling.format(root), cache) is not None

    def test_when_there_is_no_cache(self, root: Path, cache: Path) -> None:
        assert load_walk(str(root), cache) is None

    @pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "folder", "other table"])
    def test_when_the_cache_is_damaged(self, root: Path, cache: Path, damage: str) -> None:
        keep(root, cache)
        data = cache.read_bytes()
        if damage == "folder":
            cache.unlink()
            cache.mkdir()
        elif damage == "other table":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({"x": [1]}), cache)
        else:
            broken = {
                "empty": b"",
                "text": b"no table",
                "cut": data[: len(data) // 2],
                "flipped": data[:-6] + bytes([data[-6] ^ 0xFF]) + data[-5:],
            }
            cache.write_bytes(broken[damage])
        assert load_walk(str(root), cache) is None


class TestNotKept:
    @pytest.mark.parametrize("below", ["", "train", "train/class0/more"])
    def test_a_folder_that_was_changed_just_now(
        self, root: Path, cache: Path, below: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time()
        monkeypatch.setattr(folder_module, "time", SimpleNamespace(time_ns=lambda: int(now * 1e9)))
        just_now = now - SETTLED_S / 3
        os.utime(root / below, (just_now, just_now))
        save_walk(str(root), walk(str(root)), cache)
        assert not cache.exists()
        now += SETTLED_S
        save_walk(str(root), walk(str(root)), cache)
        assert cache.exists()

    def test_a_folder_from_the_future(self, root: Path, cache: Path) -> None:
        os.utime(root / "train", (time.time() + 1000, time.time() + 1000))
        save_walk(str(root), walk(str(root)), cache)
        assert not cache.exists()

    def test_where_nothing_can_be_written(self, root: Path, tmp_path: Path) -> None:
        save_walk(str(root), walk(str(root)), tmp_path / "nowhere" / "kept.parquet")

    def test_a_folder_that_could_not_be_listed(
        self, root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rights may be given later, which changes no folder's time."""
        plain = os.scandir

        def refusing(path: str) -> object:
            if path.endswith("class1"):
                raise PermissionError(13, "Permission denied")
            return plain(path)

        monkeypatch.setattr(folder_module.os, "scandir", refusing)
        seen = walk(str(root))
        monkeypatch.undo()
        assert ("train/class1", "cannot list: Permission denied") in seen.ignored
        save_walk(str(root), seen, cache)
        assert load_walk(str(root), cache) is None


def test_the_cache_of_a_pack_lies_in_its_target(root: Path, tmp_path: Path) -> None:
    out = pack(root, tmp_path / "out", workers=1)
    assert (out / WALK_CACHE).is_file()
