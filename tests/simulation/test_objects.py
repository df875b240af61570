"""The simulated store's own rules: what happens to requests, versions and the disk of a machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.local_disk import LocalDisk, LocalPath, remove
from simulation.objects import Bucket, SimulatedObjects, Way
from simulation.world import Machine, Process, World, sleep
from stoker.stores.objects import Conflict, Missing, StoreError, Version

PATIENCE_S, LATEST_S = 5.0, 30.0


class Client:
    """A process that asks a store something."""

    def __init__(self, *, bad: float = 0.0, hashed: bool = True) -> None:
        self.world = World(0)
        self.bucket = Bucket(self.world, conditional=True, hashed=hashed)
        self.way = Way(1e9, bad, LATEST_S, PATIENCE_S, 1)
        self.objects = SimulatedObjects(self.bucket, self.way)
        self.process = Process(Machine(self.world, "m"), "client")

    def run(self, body: Callable[[SimulatedObjects], object]) -> None:
        """Let a client do something; whatever is still on its way arrives after it."""
        self.process.run(lambda: int(body(self.objects) is None))
        ends: list[float] = []
        self.world.at(500.0, lambda: ends.append(self.world.now))
        self.world.run(lambda: bool(ends), 1000)

    def fated(self, *fates: str) -> None:
        """What happens to the next requests, in place of what the seed draws."""
        self.way.bad, left = 1.0, list(fates)
        self.world.rng.choice = lambda choices: left.pop(0)  # type: ignore[method-assign]


def test_every_later_read_sees_a_write() -> None:
    client = Client()

    def body(objects: SimulatedObjects) -> None:
        with pytest.raises(Missing):
            objects.read("a/b")
        version = objects.create("a/b", b"1")
        assert objects.read("a/b") == (b"1", version)
        with pytest.raises(Conflict):
            objects.create("a/b", b"2")
        with pytest.raises(Conflict):
            objects.replace("a/b", b"2", Version("another"))
        objects.replace("a/b", b"2", version)
        assert [found.key for found in objects.list("a")] == ["a/b"]
        assert objects.find("a") is None
        objects.delete(["a/b", "a/c"])
        assert objects.list() == []

    client.run(body)
    assert client.process.code == 1


@pytest.mark.parametrize("hashed", [True, False])
def test_a_version_comes_back_only_where_it_is_a_hash(hashed: bool) -> None:
    client = Client(hashed=hashed)
    versions: list[Version] = []
    client.run(lambda objects: versions.extend(objects.write("a", data) for data in (b"1", b"1")))
    assert (versions[0] == versions[1]) == hashed


@pytest.mark.parametrize(
    ("fate", "applied"), [("lost", False), ("unanswered", True), ("late", True)]
)
def test_a_request_whose_answer_does_not_come_may_be_applied(fate: str, applied: bool) -> None:
    client = Client()
    client.fated(fate)
    client.world.rng.random = lambda: 0.9  # type: ignore[method-assign]
    there: list[bool] = []

    def body(objects: SimulatedObjects) -> None:
        with pytest.raises(StoreError):
            objects.write("a", b"1")
        there.append("a" in client.bucket.objects)

    client.run(body)
    assert client.process.code == 1
    assert there == [fate == "unanswered"]
    assert ("a" in client.bucket.objects) == applied


def test_a_request_may_be_applied_twice_and_after_its_sender_was_killed() -> None:
    client = Client()
    client.fated("repeated")
    applied: list[float] = []
    client.bucket.on_write = lambda key, data, sender: applied.append(client.world.now)

    def body(objects: SimulatedObjects) -> None:
        objects.write("a", b"1")
        client.process.kill()
        sleep(1.0)

    client.run(body)
    assert client.process.code == -9
    assert len(applied) == 2


@pytest.mark.parametrize(("way", "applied"), [("there", False), ("back", True), ("both", False)])
def test_a_machine_that_is_cut_off_gets_no_answer(way: str, applied: bool) -> None:
    client = Client()
    client.way.cut["m"] = way

    def body(objects: SimulatedObjects) -> None:
        with pytest.raises(StoreError):
            objects.write("a", b"1")

    client.run(body)
    assert client.process.code == 1
    assert ("a" in client.bucket.objects) == applied


def test_half_a_write_stays_half_and_a_folder_moves_as_a_whole() -> None:
    client, disk = Client(), LocalDisk()

    def body(objects: SimulatedObjects) -> None:
        draft, target = LocalPath(disk, "run/draft"), LocalPath(disk, "run/target")
        draft.mkdir()
        (draft / "a").write_bytes(b"whole")
        draft.rename(target)
        assert [path.name for path in target.iterdir()] == ["a"]
        assert not draft.exists()
        remove(target)
        assert not target.exists()
        target.mkdir()
        client.process.dies_at = client.process.operations + 1
        (target / "b").write_bytes(b"whole")

    client.run(body)
    assert client.process.code == -9
    assert disk.files == {"run/target/b": b"wh"}
