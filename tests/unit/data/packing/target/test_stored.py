"""A target in a store: who may pack there, what makes it a set, and what is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_objects import MemoryObjects
from stoker.commit import json_bytes
from stoker.data.packing.target import stored
from stoker.data.packing.target.places import target_of
from stoker.data.packing.target.stored import StoreTarget
from stoker.data.seal import SOURCE_CACHE
from stoker.errors import BadRequest
from stoker.stores.location import Location

DESCRIPTION = {
    "splits": {"train": {"shards": [{"name": "00000.tar"}]}},
    "rejected_sha256": "0",
}


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryObjects:
    objects = MemoryObjects(location="s3://bucket/set")
    monkeypatch.setattr(stored, "client_of", lambda location: objects)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    return objects


def target() -> StoreTarget:
    return StoreTarget(Location("s3", "bucket", "set"))


def tables(place: StoreTarget) -> None:
    for name in ("train/index.parquet", "rejected.parquet"):
        (place.work / name).parent.mkdir(exist_ok=True)
        (place.work / name).write_bytes(name.encode())


@pytest.mark.parametrize("conditional", [True, False])
def test_the_first_pack_claims_a_location_for_its_request(
    objects: MemoryObjects, conditional: bool
) -> None:
    objects.conditional = conditional
    target().claim("66", "one")
    target().claim("66", "one")
    for root, request in (("66", "two"), ("77", "one"), (None, "one")):
        with pytest.raises(BadRequest, match=r"another pack.*delete s3://bucket/set/\.source"):
            target().claim(root, request)
    assert target().note() == {"root": "66", "request": "one"}


def test_a_note_that_is_none_is_written_over(objects: MemoryObjects) -> None:
    objects.content[SOURCE_CACHE] = b"[1"
    target().claim(None, "one")
    assert target().note() == {"request": "one"}


def test_only_what_a_pack_leaves_may_be_there(objects: MemoryObjects) -> None:
    own = (".parts/train-00000.parquet", "train/00000.tar", SOURCE_CACHE, "val/index.parquet")
    objects.content |= dict.fromkeys((*own, ".conditions-0a1b"), b"")
    target().require_own()
    objects.content["train/cat.jpg"] = b""
    with pytest.raises(BadRequest, match=r"it holds train/cat.jpg"):
        target().require_own()
    objects.content["dataset.json"] = b""  # a set, which the caller compares
    target().require_own()


@pytest.mark.parametrize("conditional", [True, False])
def test_the_description_comes_last_and_only_the_set_is_left(
    objects: MemoryObjects, conditional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.conditional = conditional
    monkeypatch.setattr(StoreTarget, "is_packed", "dataset.json" in objects.content)
    place = target()
    tables(place)
    others = ("train/00007.tar", "val/00000.tar", ".parts/train-00000.parquet")
    objects.content |= dict.fromkeys(("train/00000.tar", *others), b"shard")
    assert place.commit(DESCRIPTION)
    assert objects.keys() == [
        "dataset.json",
        "rejected.parquet",
        "train/00000.tar",
        "train/index.parquet",
    ]
    assert objects.content["dataset.json"] == json_bytes(DESCRIPTION)
    writes = [key for method, key in objects.requests if method in ("create", "write", "upload")]
    assert writes[-1] == "dataset.json"
    assert list(place.work.iterdir()) == []


def test_a_set_of_another_process_is_not_written_over(objects: MemoryObjects) -> None:
    place = target()
    tables(place)
    objects.content["dataset.json"] = b"{}"
    assert not place.commit(DESCRIPTION)
    assert objects.content["dataset.json"] == b"{}"


def test_a_pack_that_is_withdrawn_removes_only_what_it_began(objects: MemoryObjects) -> None:
    first, second = target(), target()
    first.claim(None, "one")
    objects.content |= {"train/00000.tar": b"", "notes.txt": b""}
    second.claim(None, "one")
    second.withdraw(everything=True)
    assert "train/00000.tar" in objects.content
    first.withdraw(everything=True)
    assert objects.keys() == ["notes.txt"]


def test_a_web_server_is_no_target() -> None:
    with pytest.raises(BadRequest, match=r"can only be read.*s3://, gs:// or az://"):
        target_of("https://example.org/set")
