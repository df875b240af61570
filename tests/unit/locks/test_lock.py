from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.data.packing.shard import one_at_a_time
from stoker.data.packing.target.folder import FolderTarget
from stoker.data.packing.target.scratch import scratch
from stoker.errors import BadRequest
from stoker.locks import lease as rules
from stoker.locks.lock import LEASES, FolderLeases, FolderLock, TakenOver, is_held, locked
from stoker.run.directory import Run
from stoker.run.storage import RunInUse
from stoker.stores.cache import FileCache
from stoker.track.curve import CurvePosition
from stoker.track.folder import SinkFolder
from stoker.track.sink import Refusal


@contextmanager
def lock_of(folder: Path) -> Iterator[FolderLock]:
    handle = os.open(folder, os.O_RDONLY)
    lock = FolderLock(folder, handle)
    try:
        yield lock
    finally:
        lock.release()
        os.close(handle)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, *names: str) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    for name in names:
        monkeypatch.setattr(os, name, fail)


ERRORS = [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL]


def test_where_locks_work_there_are_no_leases(tmp_path: Path) -> None:
    with lock_of(tmp_path) as first, lock_of(tmp_path) as second:
        assert first.take()
        assert not second.take()
        assert not second.is_silent
        assert first.lost() == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("names", [(), ("link",)])
def test_where_they_do_not_one_process_has_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, names: tuple[str, ...]
) -> None:
    refuse(monkeypatch, errno.ENOSYS, *names)
    refuse(monkeypatch, number)
    with lock_of(tmp_path) as first, lock_of(tmp_path) as second:
        assert first.take()
        assert not second.take()
        assert first.lost() == ""
        first.release()
        assert second.take()


def test_a_run_tells_who_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOSYS)
    first, second = Run(tmp_path / "run"), Run(tmp_path / "run")
    assert not second.is_running
    first.lock()
    assert second.is_running
    with pytest.raises(RunInUse, match=f"is being trained by process {os.getpid()} on "):
        second.lock(0.0)
    first.require_place()
    first.unlock()
    assert not second.is_running
    second.lock(0.0)
    second.unlock()


def test_a_holder_that_ended_is_not_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.ENOSYS)
    run = Run(tmp_path / "run")
    run.lock()
    newest = run.path / LEASES / "000001"
    record = json.loads(newest.read_text())
    newest.write_text(json.dumps({**record, "began": "1"}))
    assert not run.is_running
    newest.write_text(json.dumps({**record, "boot": "another"}))
    assert run.is_running
    for path in newest.parent.iterdir():
        os.utime(path, (1.0, 1.0))
    assert is_held(run.path, "lock") == (newest.parent / "000001.beat").exists()
    run.unlock()


def test_a_holder_that_another_has_followed_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.ENOSYS)
    run = Run(tmp_path / "run")
    run.lock()
    run.hold()
    (run.path / LEASES / "000002").write_text("{}")
    with pytest.raises(TakenOver, match="another process has taken it over while this one stood"):
        run.require_place()
    assert not run.is_in_place
    run.unlock()
    assert not (run.path / LEASES / "000001.end").exists()


def test_a_disk_with_neither_locks_nor_leases_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.ENOSYS, "link")
    real_open = os.open

    def open_unless_new(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_EXCL:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real_open(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", open_unless_new)
    with pytest.raises(BadRequest) as refusal:
        Run(tmp_path / "run").lock()
    assert str(refusal.value).startswith(f"cannot write in {tmp_path / 'run'}: ")
    assert "neither locks of files nor links" in str(refusal.value)
    assert rules.EXPIRES_S > rules.YIELDS_S > rules.BEATS_S


def test_old_leases_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOSYS)
    for _ in range(10):
        with locked(tmp_path, tmp_path / "file"):
            pass
    numbers = {path.name[:6] for path in (tmp_path / LEASES).iterdir()}
    assert numbers == {"000009", "000010"}


def test_a_lease_that_is_created_late_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.ENOSYS)
    (tmp_path / LEASES).mkdir()
    real = FolderLeases.take

    def late(self: FolderLeases, cell: str) -> Any:
        lease = real(self, cell)
        (tmp_path / LEASES / "000007").write_text("{}")
        return lease

    monkeypatch.setattr(FolderLeases, "take", late)
    with lock_of(tmp_path) as lock:
        assert not lock.take()


class TestNeighbours:
    """What else locks a file works without, too."""

    def test_a_pack_waits_for_another_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse(monkeypatch, errno.ENOSYS)
        target = FolderTarget(tmp_path / "out")
        with target.held(), lock_of(target.work) as other:
            assert not other.take()
            with pytest.raises(TakenOver):
                (target.work / LEASES / "000002").write_text("{}")
                target.commit({})
        assert not (target.work / "dataset.json").exists()
        target.require_own()

    def test_those_that_share_a_pack_are_not_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse(monkeypatch, errno.ENOSYS)
        target = FolderTarget(tmp_path / "out")
        with target.held(shared=True), target.held(shared=True):
            pass

    def test_a_large_image_is_packed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse(monkeypatch, errno.ENOSYS)
        for _ in range(3):
            with one_at_a_time(tmp_path / "parts" / "large.lock", needed=True):
                pass

    def test_a_shard_on_its_way_to_a_store_has_a_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
        refuse(monkeypatch, errno.ENOSYS)
        with scratch() as first:
            with scratch() as second:
                assert first != second and first.is_dir()
            assert not second.exists()
        abandoned = first.parent / "abandoned"
        abandoned.mkdir()
        with scratch():
            assert not abandoned.exists()

    def test_a_second_tracker_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rules, "BEATS_S", 0.01)
        refuse(monkeypatch, errno.ENOSYS)
        first, second = SinkFolder(str(tmp_path), "a"), SinkFolder(str(tmp_path), "a")
        first.open()
        with pytest.raises(Refusal, match="another tracker writes to"):
            second.open()
        first.save(CurvePosition())
        first.close()
        second.open()
        second.close()

    def test_a_cache_is_refused_with_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse(monkeypatch, errno.ENOSYS)
        with pytest.raises(BadRequest, match="name a folder on a local disk in STOKER_CACHE"):
            FileCache(tmp_path, 1)
