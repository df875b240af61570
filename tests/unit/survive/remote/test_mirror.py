from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memory_objects import Fault, MemoryObjects
from stoker.errors import StokerError
from stoker.stores.lease import LeaseHeld
from stoker.survive.manifest import names_in, problem_of
from stoker.survive.remedies import Remedies, Remedy
from stoker.survive.remote import mirror as module
from stoker.survive.remote.folder_mark import read_mark
from stoker.survive.remote.mirror import RunMirror
from stoker.survive.remote.peers import propose
from stored_content import checkpoint, content_of, mirror_of, write_steps


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test copies itself."""
    monkeypatch.setattr(RunMirror, "_start", lambda self, name, work: None)
    monkeypatch.setenv(module.END_VARIABLE, "0.2")
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr("stoker.survive.remote.peers.POLL_S", 0.01)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def begun(run: Path, objects: MemoryObjects, attempt: int = 1, world: int = 1) -> RunMirror:
    mirror = mirror_of(run, objects)
    mirror.open(0.0)
    write_steps(run, attempt, 0, range(5))
    mirror.begin_attempt(attempt, world, range(1))
    return mirror


def folders(objects: MemoryObjects) -> set[str]:
    return {key.rpartition("/")[0] for key in objects.keys("checkpoints")}


def test_another_machine_has_all_of_it(tmp_path: Path, objects: MemoryObjects) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    (run / "trouble" / "3").mkdir(parents=True)
    files = {"run.json": "x" * 500, "best": "000000005", "trouble/3/rank0.json": "{}"}
    mirror = mirror_of(run, objects)
    mirror.open(0.0)
    for name, text in files.items():
        (run / name).write_text(text)
    (run / "launcher.log").write_text("not copied")
    write_steps(run, 1, 0, range(5))
    mirror.begin_attempt(1, 1, range(1))
    name = checkpoint(run, 5)
    mirror.close()

    follower = mirror_of(other, objects)
    follower.open(0.0)
    assert not problem_of(other / "checkpoints" / name)
    for path in (*files, "last", "attempts/0001/rank0.jsonl"):
        assert (other / path).read_bytes() == (run / path).read_bytes()
    assert not (other / "launcher.log").exists()


def test_the_head_names_a_checkpoint_after_its_events(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    mirror = begun(tmp_path, objects)
    name = checkpoint(tmp_path, 5)
    objects.requests.clear()
    mirror.copy()
    writes = [key for method, key in objects.requests if method in ("write", "upload", "replace")]
    order = [key.partition("/")[0] for key in writes]
    assert order == ["attempts", *["checkpoints"] * 4, "head.json"]
    assert content_of(objects).checkpoints.keys() == {name}
    assert content_of(objects).files["last"] == {"text": name}


def test_a_pointer_never_names_what_is_not_in_the_store(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    mirror = begun(tmp_path, objects)
    first, better = checkpoint(tmp_path, 5), checkpoint(tmp_path, 6)
    (tmp_path / "best").write_text(first)
    newest = checkpoint(tmp_path, 7)
    mirror.copy()
    assert content_of(objects).files["last"] == {"text": newest}
    assert "best" not in content_of(objects).files
    mirror.copy()
    assert content_of(objects).files["best"] == {"text": first}

    # The best one is replaced, and the earlier one is pruned, before the new one is uploaded.
    (tmp_path / "best").write_text(better)
    shutil.rmtree(tmp_path / "checkpoints" / first)
    checkpoint(tmp_path, 8)
    mirror.copy()
    assert content_of(objects).files["best"] == {"text": first}
    assert first in content_of(objects).checkpoints
    mirror.copy()
    assert content_of(objects).files["best"] == {"text": better}
    assert first not in content_of(objects).checkpoints
    assert folders(objects) == set(content_of(objects).checkpoints.values())


def test_an_upload_that_broke_off_is_deleted(tmp_path: Path, objects: MemoryObjects) -> None:
    mirror = begun(tmp_path, objects)
    checkpoint(tmp_path, 5)
    objects.faults.append(Fault("upload", "*/state.pt"))
    with pytest.raises(StokerError):
        mirror.copy()
    torn = folders(objects)
    assert not torn or not content_of(objects).checkpoints
    mirror.copy()
    assert folders(objects) == set(content_of(objects).checkpoints.values())
    assert not torn & folders(objects)


def test_a_process_without_the_lease_deletes_nothing_of_the_next_one(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    """It had its commit acknowledged, slept, and then tidies up."""
    mirror = begun(tmp_path / "a", objects)
    checkpoint(tmp_path / "a", 5)
    mirror.copy()
    checkpoint(tmp_path / "a", 6)
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "000000005")
    taken: list[set[str]] = []

    def take_over(method: str, key: str) -> None:
        if method == "delete" and not taken:
            taken.append(set())
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / ".holder").write_bytes((tmp_path / "a" / ".holder").read_bytes())
            other = begun(tmp_path / "b", objects, attempt=2)
            checkpoint(tmp_path / "b", 9)
            other.copy()
            taken[0] = set(content_of(objects).checkpoints.values())

    objects.before = take_over
    mirror.copy()
    assert taken and taken[0] <= folders(objects)
    checkpoint(tmp_path / "a", 7)
    mirror._copy_or_note()
    assert "no longer trains the run" in mirror.lost
    assert set(content_of(objects).checkpoints.values()) == taken[0]


def test_two_machines_never_use_one_number(tmp_path: Path, objects: MemoryObjects) -> None:
    """The first recorded its attempt and uploaded nothing of it."""
    mirror = begun(tmp_path / "a", objects)
    mirror._lease.release()
    other = mirror_of(tmp_path / "b", objects)
    other.open(0.0)
    assert (tmp_path / "b" / "attempts" / "0001").is_dir()


def test_an_attempt_that_was_not_recorded_is_dropped(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    begun(tmp_path / "a", objects).close()
    write_steps(tmp_path / "a", 2, 0, range(9))
    begun(tmp_path / "b", objects, attempt=2).close()
    mirror_of(tmp_path / "a", objects).open(0.0)
    own, theirs = ((tmp_path / m / "attempts/0002/rank0.jsonl").read_bytes() for m in ("a", "b"))
    assert own == theirs


@pytest.mark.parametrize(("is_newest", "kept"), [(True, True), (False, False)])
def test_what_is_ahead_of_the_store_is_kept_by_the_last_machine_alone(
    tmp_path: Path, objects: MemoryObjects, is_newest: bool, kept: bool
) -> None:
    mirror = begun(tmp_path / "a", objects)
    ahead = checkpoint(tmp_path / "a", 5)
    (tmp_path / "a" / "remedies.json").write_text("[]")
    mirror._lease.release()
    if not is_newest:
        begun(tmp_path / "b", objects, attempt=2).close()
    again = mirror_of(tmp_path / "a", objects)
    again.open(0.0)
    assert (ahead in names_in(tmp_path / "a" / "checkpoints")) == kept
    assert (tmp_path / "a" / "remedies.json").exists() == kept


def test_a_diverged_checkpoint_leaves_the_store_with_its_remedy(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    mirror = begun(tmp_path, objects)
    good, bad = checkpoint(tmp_path, 5), checkpoint(tmp_path, 6)
    mirror.copy()
    shutil.rmtree(tmp_path / "checkpoints" / good)
    mirror.close()
    # Another process resumes from it, and finds that it is bad.
    again = mirror_of(tmp_path, objects)
    again.open(0.0)
    folder = tmp_path / "checkpoints" / bad
    folder.rename(folder.with_name(f"{bad}.diverged"))
    Remedies(tmp_path).take(Remedy("cut", 0, "digest", "trouble"))
    again.begin_attempt(2, 1, range(1))
    assert content_of(objects).checkpoints == {}
    assert "remedies.json" in content_of(objects).files
    assert not folders(objects)


def test_a_damaged_checkpoint_is_replaced(tmp_path: Path, objects: MemoryObjects) -> None:
    mirror = begun(tmp_path / "a", objects)
    name = checkpoint(tmp_path / "a", 5)
    mirror.close()
    prefix = content_of(objects).checkpoints[name]
    objects.content[f"{prefix}/state.pt"] = b"other"
    other = mirror_of(tmp_path / "b", objects)
    other.open(0.0)
    assert not names_in(tmp_path / "b" / "checkpoints")
    other.begin_attempt(2, 1, range(1))
    assert not content_of(objects).checkpoints
    checkpoint(tmp_path / "b", 5)
    other.copy()
    assert content_of(objects).checkpoints[name] != prefix
    assert folders(objects) == set(content_of(objects).checkpoints.values())


def test_a_checkpoint_waits_for_the_events_of_other_machines(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PEERS_S", 0.05)
    mirror = begun(tmp_path / "a", objects, world=2)
    checkpoint(tmp_path / "a", 5)
    with pytest.raises(StokerError, match="the events of rank 1 are not in"):
        mirror.copy()
    assert not content_of(objects).checkpoints
    peer = mirror_of(tmp_path / "b", objects, leads=False)
    peer.open(0.0)
    write_steps(tmp_path / "b", 1, 1, range(5))
    peer.begin_attempt(1, 2, range(1, 2))
    peer.copy(everything=True)
    mirror.copy()
    assert content_of(objects).checkpoints


def test_a_remedy_of_another_machine_reaches_all(tmp_path: Path, objects: MemoryObjects) -> None:
    remedy = Remedy("micro_batch", 3, "digest", "out of memory", before=8, after=4)
    propose(objects, remedy)
    objects.content["remedies/x.json"] = b'{"kind": "run this", "position": -1}'
    begun(tmp_path / "a", objects)
    assert Remedies(tmp_path / "a").taken == [remedy]
    assert not objects.keys("remedies")
    peer = mirror_of(tmp_path / "b", objects, leads=False)
    peer.open(0.0)
    assert Remedies(tmp_path / "b").taken == [remedy]


def test_what_the_store_did_not_take_is_said_and_uploaded_later(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    mirror = begun(tmp_path, objects)
    name = checkpoint(tmp_path, 5)
    objects.faults.append(Fault("upload", times=10**6))
    with pytest.raises(StokerError, match="not everything of the run is in s3://bucket/run"):
        mirror.close()
    assert not read_mark(tmp_path).sent
    objects.faults.clear()
    again = mirror_of(tmp_path, objects)
    again.open(0.0)
    again.send_rest()
    again.close()
    assert read_mark(tmp_path).sent
    assert name in content_of(objects).checkpoints


def test_after_a_failure_nothing_more_is_raised(tmp_path: Path, objects: MemoryObjects) -> None:
    mirror = begun(tmp_path, objects)
    checkpoint(tmp_path, 5)
    objects.faults.append(Fault("upload", times=10**6))
    mirror.close(failed=True)


def test_a_holder_that_is_alive_is_refused_at_once(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = begun(tmp_path / "a", objects)
    looks = 0

    def renew(method: str, key: str) -> None:
        nonlocal looks
        if (method, key) == ("read", "head.json"):
            looks += 1
            objects.before = lambda method, key: None
            mirror._lease.renew()
            objects.before = renew

    objects.before = renew
    with pytest.raises(LeaseHeld, match="is trained by another process, on"):
        mirror_of(tmp_path / "b", objects).open(3600.0)
    assert looks < 10
