"""The cache of files: whole or absent, within its limit, never one in use evicted."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from stoker.errors import BadRequest
from stoker.stores import cache as cache_module
from stoker.stores.cache import Download, FileCache, HeldFile, NoRoom, Wanted, WrongHash
from stoker.stores.patience import Patience, Stopped

SIZE = 1000


def content(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest() * (SIZE // 32) + bytes(SIZE % 32)


def wanted(number: int) -> Wanted:
    data = content(number)
    return Wanted(hashlib.sha256(data).hexdigest(), len(data))


def sends(*parts: bytes) -> Download:
    def download(into: cache_module.Callable[[memoryview], None]) -> None:
        for part in parts:
            into(memoryview(part))

    return download


def fetched(cache: FileCache, number: int) -> HeldFile:
    return cache.fetch(wanted(number), sends(content(number)[:300], content(number)[300:]))


def unused() -> Download:
    def download(into: object) -> None:
        raise AssertionError("it is fetched again")

    return download


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 3 * SIZE)


def test_a_file_is_fetched_once(cache: FileCache) -> None:
    assert cache.held(wanted(1)) is None
    held = fetched(cache, 1)
    assert os.pread(held.handle, 2 * SIZE, 0) == content(1)
    held.close()
    again = cache.fetch(wanted(1), unused())
    assert os.pread(again.handle, 2 * SIZE, 0) == content(1)
    assert cache.bytes_used == SIZE


def test_the_file_that_was_used_longest_ago_goes_first(cache: FileCache) -> None:
    for number in range(3):
        fetched(cache, number).close()
        os.utime(cache.path_of(wanted(number)), (number, number))
    held = cache.held(wanted(0))  # now it is the newest
    assert held is not None
    held.close()
    fetched(cache, 3).close()
    assert cache.held(wanted(1)) is None
    assert all(cache.held(wanted(number)) for number in (0, 2, 3))
    assert cache.bytes_used == 3 * SIZE


def test_a_file_in_use_is_not_evicted(cache: FileCache) -> None:
    held = [fetched(cache, number) for number in range(3)]
    with pytest.raises(NoRoom, match="allow it more"):
        fetched(cache, 3)
    held[1].close()
    fetched(cache, 3)
    assert cache.held(wanted(1)) is None
    assert [os.pread(held[n].handle, SIZE, 0) for n in (0, 2)] == [content(0), content(2)]


def test_what_is_needed_is_fetched_without_room(cache: FileCache) -> None:
    held = [fetched(cache, number) for number in range(3)]
    needed = Wanted(wanted(9).sha256, SIZE, needed=True)
    assert cache.fetch(needed, sends(content(9))).handle >= 0
    assert len(held) == 3


def test_a_wrong_hash_is_fetched_again_and_then_refused(cache: FileCache) -> None:
    answers = [bytes(SIZE), bytes(SIZE), content(1)]
    held = cache.fetch(wanted(1), lambda into: into(memoryview(answers.pop(0))))
    assert os.pread(held.handle, SIZE, 0) == content(1)
    with pytest.raises(WrongHash):
        cache.fetch(wanted(2), sends(bytes(SIZE)))
    assert cache.held(wanted(2)) is None
    assert cache.bytes_used == SIZE


def test_a_download_that_fails_leaves_nothing(cache: FileCache) -> None:
    def fails(into: cache_module.Callable[[memoryview], None]) -> None:
        into(memoryview(content(1)[:100]))
        raise Stopped

    with pytest.raises(Stopped):
        cache.fetch(wanted(1), fails)
    assert cache.bytes_used == 0


def test_what_a_killed_process_left_is_removed(cache: FileCache) -> None:
    part = cache.folder / "files" / f"{wanted(1).sha256}.part"
    part.write_bytes(bytes(SIZE))
    strange = cache.folder / "files" / "notes.txt"
    strange.write_text("not ours")
    assert FileCache(cache.folder, SIZE).bytes_used == 0
    assert strange.exists()


def test_a_part_that_is_being_fetched_is_left(cache: FileCache) -> None:
    def download(into: cache_module.Callable[[memoryview], None]) -> None:
        FileCache(cache.folder, SIZE)  # another process starts
        into(memoryview(content(1)))

    assert os.pread(cache.fetch(wanted(1), download).handle, SIZE, 0) == content(1)
    assert cache.held(wanted(1)) is not None


def test_a_file_of_another_size_is_dropped(cache: FileCache) -> None:
    fetched(cache, 1).close()
    with cache.path_of(wanted(1)).open("ab") as file:
        file.write(b"more")
    assert cache.held(wanted(1)) is None
    assert os.pread(fetched(cache, 1).handle, 2 * SIZE, 0) == content(1)


def test_a_folder_that_is_deleted_is_made_again(cache: FileCache) -> None:
    import shutil

    def download(into: cache_module.Callable[[memoryview], None]) -> None:
        into(memoryview(content(1)[:10]))
        shutil.rmtree(cache.folder)
        into(memoryview(content(1)[10:]))

    held = cache.fetch(wanted(1), download)
    assert os.pread(held.handle, SIZE, 0) == content(1)
    fetched(cache, 2)
    assert cache.bytes_used == SIZE


def test_a_link_in_the_place_of_a_file_is_not_followed(cache: FileCache, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(content(1))
    cache.path_of(wanted(1)).symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        cache.held(wanted(1))


def test_a_process_that_stands_still_is_not_waited_for(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hangs(into: cache_module.Callable[[memoryview], None]) -> None:
        begun.set()
        go_on.wait(60)
        into(memoryview(content(1)))

    thread = threading.Thread(target=lambda: cache.fetch(wanted(1), hangs))
    thread.start()
    assert begun.wait(60)
    try:
        monkeypatch.setattr(cache_module, "STILL_S", 0.01)
        with pytest.raises(NoRoom, match="end that process"):
            cache.fetch(wanted(1), unused())
    finally:
        go_on.set()
        thread.join(60)
    assert cache.held(wanted(1)) is not None


def test_a_stop_ends_waiting_for_another_process(cache: FileCache) -> None:
    begun, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    def hangs(into: cache_module.Callable[[memoryview], None]) -> None:
        begun.set()
        go_on.wait(60)
        into(memoryview(content(1)))

    thread = threading.Thread(target=lambda: cache.fetch(wanted(1), hangs))
    thread.start()
    assert begun.wait(60)
    stopped.set()
    try:
        with pytest.raises(Stopped):
            cache.fetch(wanted(1), unused(), Patience(stopped=stopped))
    finally:
        go_on.set()
        thread.join(60)


def test_threads_that_need_a_file_get_it_by_one_download(cache: FileCache) -> None:
    calls: list[float] = []

    def download(into: cache_module.Callable[[memoryview], None]) -> None:
        calls.append(time.monotonic())
        into(memoryview(content(1)))

    threads = [threading.Thread(target=lambda: cache.fetch(wanted(1), download)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(calls) == 1


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="name a folder on a local disk in STOKER_CACHE"):
        FileCache(tmp_path / "file", 1)
