from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory_objects import MemoryObjects
from stoker.errors import StokerError
from stoker.stores.objects import StoreError
from stoker.survive.remote import records
from stoker.survive.remote.pull import pull
from stoker.survive.remote.records import Content, pull_segments, push_segments, segments
from stored_content import content_of, write_content

DIGEST, ID = "a" * 64, "0" * 16
FILE = {"sha256": DIGEST, "bytes": 10, "id": ID}

HOSTILE: dict[str, dict[str, Any]] = {
    "a path that leads out": {"files": {"../../outside": {"text": "x"}}},
    "an absolute path": {"files": {"/etc/outside": {"text": "x"}}},
    "a name inside": {"files": {"attempts/../../outside.json": {"text": "x"}}},
    "other digits": {"files": {"attempts/\u0660\u0660\u0660\u0661/a.json": {"text": "x"}}},
    "a lock": {"files": {"lock": {"text": "x"}}},
    "a long text": {"files": {"last": {"text": "x" * 1000}}},
    "a text that is none": {"files": {"last": {"text": 3}}},
    "a text with more": {"files": {"last": {"text": "x", "bytes": 1 << 60}}},
    "no hash": {"files": {"run.json": {**FILE, "sha256": "../x"}}},
    "no id": {"files": {"run.json": {**FILE, "id": "../../x"}}},
    "a huge file": {"files": {"run.json": {**FILE, "bytes": 1 << 40}}},
    "a negative size": {"files": {"run.json": {**FILE, "bytes": -1}}},
    "a size that is none": {"files": {"run.json": {**FILE, "bytes": True}}},
    "too much in all": {"files": {f"model-{n}.py": {**FILE, "bytes": 1 << 26} for n in range(30)}},
    "files that are none": {"files": [1]},
    "a checkpoint elsewhere": {"checkpoints": {"000000001": f"../x/000000001.{ID}"}},
    "a checkpoint of another name": {"checkpoints": {"000000001": f"checkpoints/000000002.{ID}"}},
    "a checkpoint that leads out": {"checkpoints": {"../../x": f"checkpoints/../../x.{ID}"}},
    "a checkpoint's long name": {"checkpoints": {"1" * 300: f"checkpoints/{'1' * 300}.{ID}"}},
    "a huge attempt": {"attempt": 10**12},
    "an attempt that is none": {"attempt": "1"},
    "no run": {"run_id": "../.."},
    "another format": {"run_format": 7},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_head_is_refused_in_a_sentence(tmp_path: Path, case: str) -> None:
    objects = MemoryObjects()
    write_content(objects, **HOSTILE[case])
    with pytest.raises(StoreError, match=r"head\.json is not that of a run"):
        pull(objects, tmp_path / "run", content_of(objects), checkpoints=True)
    assert not list(tmp_path.iterdir())


SEGMENTS = {
    "leads out": "attempts/../../../outside.jsonl/000000000000-000000000004",
    "leads out by its file": "attempts/0001/../x.jsonl/000000000000-000000000004",
    "another length": "attempts/0001/rank0.jsonl/000000000000-000000000009",
    "a gap": "attempts/0001/rank0.jsonl/000000000009-000000000013",
    "backwards": "attempts/0001/rank0.jsonl/000000000004-000000000000",
    "many digits": f"attempts/0001/rank0.jsonl/{'0' * 40}-{'0' * 39}4",
    "a huge rank": f"attempts/0001/rank{'1' * 300}.jsonl/000000000000-000000000004",
    "another file": "run.json/000000000000-000000000004",
}


@pytest.mark.parametrize("case", SEGMENTS)
def test_hostile_segments_are_passed_over(tmp_path: Path, case: str) -> None:
    objects = MemoryObjects()
    objects.content[SEGMENTS[case]] = b"bad\n"
    pull_segments(objects, tmp_path / "run")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_of_segments_that_overlap_a_chain_is_taken(tmp_path: Path) -> None:
    objects = MemoryObjects()
    name = "attempts/0001/rank0.jsonl"
    for begin, data in ((0, b"one\n"), (0, b"one\ntwo\n"), (4, b"xxx\n"), (8, b"three\n")):
        objects.content[f"{name}/{begin:012d}-{begin + len(data):012d}"] = data
    pull_segments(objects, tmp_path)
    assert (tmp_path / name).read_bytes() == b"one\ntwo\nthree\n"


def test_what_is_longer_here_stays(tmp_path: Path) -> None:
    objects = MemoryObjects()
    path = tmp_path / "attempts" / "0001" / "rank0.jsonl"
    path.parent.mkdir(parents=True)
    objects.content["attempts/0001/rank0.jsonl/000000000000-000000000004"] = b"one\n"
    path.write_bytes(b"one\ntwo\n")
    pull_segments(objects, tmp_path)
    assert path.read_bytes() == b"one\ntwo\n"


def test_many_segments_become_one_and_readers_follow(tmp_path: Path) -> None:
    objects, name = MemoryObjects(), "attempts/0001/rank0.jsonl"
    path, other = tmp_path / "rank0.jsonl", tmp_path / "other"
    chain: list[records.Segment] = []
    for number in range(records.MOST_PARTS + 3):
        with path.open("a") as file:
            file.write(f"{number}\n")
        push_segments(objects, name, path, chain)
    assert len(objects.keys("attempts")) == len(chain) == 4
    assert segments(objects) == {name: chain}

    # One that was listed is gone when it is read.
    def merge(method: str, key: str) -> None:
        if method == "read":
            objects.before = lambda method, key: None
            data = path.read_bytes()
            for old in objects.keys("attempts"):
                del objects.content[old]
            objects.content[f"{name}/{0:012d}-{len(data):012d}"] = data

    objects.before = merge
    pull_segments(objects, other)
    assert (other / name).read_bytes() == path.read_bytes()


def test_half_a_line_waits(tmp_path: Path) -> None:
    objects, path = MemoryObjects(), tmp_path / "rank0.jsonl"
    chain: list[records.Segment] = []
    path.write_bytes(b'one\n{"half')
    push_segments(objects, "leases/000001.jsonl", path, chain)
    path.write_bytes(b'one\n{"half": 1}\n')
    push_segments(objects, "leases/000001.jsonl", path, chain)
    assert [part.end for part in chain] == [4, 16]


def test_a_small_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    objects = MemoryObjects()
    write_content(objects, files={"run.json": FILE})
    objects.content[f"files/{DIGEST}.{ID}"] = b"other bytes"
    with pytest.raises(StoreError, match=r"run\.json is damaged in the store"):
        pull(objects, tmp_path, content_of(objects), checkpoints=False)
    assert not (tmp_path / "run.json").exists()


def test_a_link_in_the_folder_is_not_uploaded(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 500)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").symlink_to(secret)
    objects = MemoryObjects()
    assert records.push_files(objects, tmp_path / "run", {}) == {}
    assert not objects.content


def test_the_head_is_read_as_it_was_written() -> None:
    content = Content(ID, 3, {"run.json": dict(FILE), "last": {"text": "000000001"}}, {})
    assert Content.of(json.loads(json.dumps(content.data())), "x") == content


def test_a_checkpoint_with_a_hostile_file_is_refused(tmp_path: Path) -> None:
    objects, prefix = MemoryObjects(), f"checkpoints/000000001.{ID}"
    write_content(objects, checkpoints={"000000001": prefix})
    objects.content[f"{prefix}/COMMITTED"] = b"x" * 64
    objects.content[f"{prefix}/../../../outside"] = b"x"
    with pytest.raises(StokerError, match="which no checkpoint has"):
        pull(objects, tmp_path / "run", content_of(objects), checkpoints=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_checkpoint_larger_than_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, prefix = MemoryObjects(), f"checkpoints/000000001.{ID}"
    write_content(objects, checkpoints={"000000001": prefix})
    objects.content[f"{prefix}/COMMITTED"] = b"x" * 64
    monkeypatch.setattr("stoker.survive.remote.pull.SPARE", 1 << 60)
    with pytest.raises(StokerError, match="are free for"):
        pull(objects, tmp_path, content_of(objects), checkpoints=True)
