"""Filling the cache beforehand: what is fetched is checked, bounded, and not fetched again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from object_store import Gateway
from packing import flipped
from samples import image_folder
from stoker.cli import main
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED
from stored_sets import client_at, copied, enter, started
from waiting import until

pytestmark = pytest.mark.exact
SHARDS = 5


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of train and one of val."""
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=16, val=2)
    return pack(folder, root / "packed", workers=1, shard_images=8)


@pytest.fixture
def location(
    gateway: Gateway,
    bucket: str,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    place = enter(gateway, bucket, tmp_path / "cache", monkeypatch)
    copied(packed, place)
    return place


def cached(cache: Path) -> set[str]:
    return {path.name for path in (cache / "files").iterdir()}


def shards_of(location: str, *splits: str) -> list[str]:
    """The hashes of the shards, in the order of the set."""
    facts = Dataset(location).description["splits"]
    return [shard["sha256"] for split in splits for shard in facts[split]["shards"]]


def test_a_set_is_fetched_once_and_then_read_from_the_disk(
    gateway: Gateway,
    location: str,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cache = tmp_path / "scratch"
    assert main(["fetch", location, str(cache)]) == FINISHED
    output = capsys.readouterr().out
    assert f"{SHARDS} of {SHARDS} shards" in output
    assert f"STOKER_CACHE={cache} stoker train {location}" in output
    assert {*shards_of(location, "train", "val")} < cached(cache)
    until(lambda: len([row for row in gateway.requests() if row.key.endswith(".tar")]) >= SHARDS)
    before = len([row for row in gateway.requests() if row.key.endswith((".tar", ".parquet"))])
    assert main(["fetch", location, str(cache)]) == FINISHED
    assert "nothing had to be fetched" in capsys.readouterr().out
    monkeypatch.setenv("STOKER_CACHE", str(cache))
    here, there = Dataset(packed).split("train"), Dataset(location).split("train")
    assert np.array_equal(here.labels, there.labels)
    for sample in range(len(here)):
        assert here.bytes_of(sample) == there.bytes_of(sample)
    there.source.close()
    after = [row for row in gateway.requests() if row.key.endswith((".tar", ".parquet"))]
    assert len(after) == before


def test_as_many_shards_as_fit_in_the_order_of_the_set(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = Dataset(location).description["splits"]
    two = sum(shard["bytes"] for shard in facts["train"]["shards"][:2])
    indexes = [client_at(location).find(f"{split}/index.parquet") for split in facts]
    limit = two + sum(found.bytes for found in indexes if found) + 5000
    cache = tmp_path / "scratch"
    words = ["fetch", location, str(cache), "--cache-gb", str(limit / 1e9)]
    assert main(words) == FINISHED
    output = capsys.readouterr().out
    assert f"2 of {SHARDS} shards" in output
    assert "no more fit into" in output
    assert f"STOKER_CACHE_GB={limit / 1e9} stoker train" in output
    chosen = cached(cache) & {*shards_of(location, "train", "val")}
    assert chosen == {*shards_of(location, "train")[:2]}


def test_one_split_alone(location: str, tmp_path: Path) -> None:
    assert main(["fetch", location, "--split", "val"]) == FINISHED
    assert cached(tmp_path / "cache") > {*shards_of(location, "val")}
    assert not cached(tmp_path / "cache") & {*shards_of(location, "train")}


def test_a_stop_keeps_what_is_there_and_the_same_command_goes_on(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    stall = {"fault": "stall", "at": "cache:received", "count": 3, "seconds": 300.0}
    stall |= {"mark": str(tmp_path / "stalls"), "till": str(tmp_path / "goes on")}
    process = started("fetch", location, cache=cache, faults=(stall,))
    until(lambda: (tmp_path / "stalls").exists() or process.poll() is not None)
    os.kill(process.pid, signal.SIGINT)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    line = next(text for text in lines if "fetching stopped" in text)
    (tmp_path / "goes on").touch()
    process.communicate(timeout=300)
    assert process.returncode == INTERRUPTED
    assert "fetched shards are kept in the cache" in line
    assert not [name for name in cached(cache) if name.endswith(".part")]
    assert main(["fetch", location]) == FINISHED
    assert f"{SHARDS} of {SHARDS} shards" in capsys.readouterr().out


def test_killed_it_goes_on(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = {"fault": "kill", "at": "cache:named", "count": 4}
    killed = started("fetch", location, cache=tmp_path / "cache", faults=(fault,))
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert main(["fetch", location]) == FINISHED
    assert f"{SHARDS} of {SHARDS} shards" in capsys.readouterr().out
    assert not [name for name in cached(tmp_path / "cache") if name.endswith(".part")]


def test_a_damaged_shard_is_named_and_not_kept(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_at(location)
    client.write("train/00001.tar", flipped(client.read("train/00001.tar")[0], 700))
    assert main(["fetch", location]) == FAILED
    assert f"{location}/train/00001.tar is damaged" in capsys.readouterr().err
    assert shards_of(location, "train")[1] not in cached(tmp_path / "cache")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--split", "dev"], "has no split called 'dev': it has train, val"),
        (["--cache-gb", "0"], "allow it more"),
        (["--cache-gb", "much"], "give a number of GB"),
    ],
)
def test_refusals(
    location: str, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", location, *words]) == BAD_REQUEST
    assert answer in capsys.readouterr().err


def test_a_set_in_a_folder_needs_none(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", str(packed)]) == FINISHED
    assert "nothing needs fetching" in capsys.readouterr().out
