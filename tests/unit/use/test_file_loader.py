"""Batches of files: in order, whole, within bounds, whatever the threads do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostile_jpeg import photo, saved
from stoker.data.images.encode import Storage
from stoker.data.sources.item import Item
from stoker.errors import StokerError
from stoker.use import file_loader
from stoker.use.file_loader import FileLoader, HeldBytes
from stoker.use.prepare import Preparation
from waiting import until

SIZE = 8


class Numbered:
    """A preparation that writes an item's number, and says what the name says."""

    def fill(self, item: Item, out: Any) -> str | None:
        out[...] = int(item.name) % 256
        return f"odd {item.name}" if int(item.name) % 2 else None


def loader(preparation: Any, batch_size: int, threads: int = 3, **options: Any) -> FileLoader:
    return FileLoader(preparation, batch_size, SIZE, threads=threads, **options)


@pytest.mark.exact
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 50])
def test_batches_are_the_items_in_order(threads: int, count: int) -> None:
    items = (Item(str(number), None) for number in range(count))
    names, errors, values, sizes = [], [], [], []
    with closing(loader(Numbered(), 7, threads)) as made:
        for batch in made.batches(items):
            names += batch.names
            errors += batch.errors
            values += batch.loaded.images[:, 0, 0, 0].tolist()
            sizes.append(len(batch.loaded.images))
    assert names == [str(number) for number in range(count)]
    assert errors == [f"odd {number}" if number % 2 else None for number in range(count)]
    assert values == list(range(count))
    assert sizes == [7] * (count // 7) + ([count % 7] if count % 7 else [])


def test_what_comes_before_trouble_is_answered() -> None:
    def items() -> Iterator[Item]:
        yield from (Item(str(number), None) for number in range(10))
        raise StokerError("the archive ends early")

    names = []
    with closing(loader(Numbered(), 4)) as made:
        with pytest.raises(StokerError, match="ends early"):
            for batch in made.batches(items()):
                names += batch.names
    assert len(names) == 10


def test_items_are_taken_only_a_few_batches_ahead() -> None:
    taken = 0

    def items() -> Iterator[Item]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield Item(str(number), None)

    with closing(loader(Numbered(), 5, prefetch=3)) as made:
        batches = made.batches(items())
        next(batches)
        assert taken == 15
        next(batches)
        assert taken == 20


class Slow:
    """A preparation that waits for permission."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)

    def fill(self, item: Item, out: Any) -> str | None:
        self.allowed.acquire()
        return None


def test_bytes_of_archives_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_loader, "HELD_BYTES", 1000)
    monkeypatch.setattr(file_loader, "CHUNK_BYTES", 100)
    taken, slow = 0, Slow()

    def items() -> Iterator[Item]:
        nonlocal taken
        for number in range(50):
            taken += 1
            yield Item(str(number), bytes(100))

    names: list[str] = []

    def run() -> None:
        with closing(loader(slow, 50, 2)) as made:
            for batch in made.batches(items()):
                names.extend(batch.names)

    reader = threading.Thread(target=run)
    reader.start()
    until(lambda: taken == 11)
    slow.allowed.release(3)
    until(lambda: taken == 14)
    slow.allowed.release(47)
    reader.join(60)
    assert len(names) == 50


def test_one_image_larger_than_the_bound_still_passes() -> None:
    held = HeldBytes(10)
    held.take(100)
    waits = threading.Thread(target=held.take, args=(1,))
    waits.start()
    assert waits.is_alive()
    held.give_back(100)
    waits.join(60)
    assert not waits.is_alive()


def test_an_unforeseen_error_is_raised() -> None:
    class Wrong:
        def fill(self, item: Item, out: Any) -> str | None:
            raise KeyError(item.name)

    with closing(loader(Wrong(), 4)) as made, pytest.raises(KeyError):
        list(made.batches(iter([Item("1", None)])))


def test_real_files_and_members_side_by_side(tmp_path: Path) -> None:
    data = saved(photo(), "JPEG")
    (tmp_path / "1.jpg").write_bytes(data)
    items = [Item(str(tmp_path / "1.jpg"), None), Item("a.tar/1.jpg", data), Item("x", b"")]
    with closing(loader(Preparation(Storage(), 1.0), 8)) as made:
        (batch,) = made.batches(iter(items))
        np.testing.assert_array_equal(batch.loaded.images[0], batch.loaded.images[1])
    assert batch.errors == [None, None, "empty file"]
