"""The shards and the set of a web server: through the cache, mended, stopped, and told of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_proxy import FaultProxy, fault_proxy
from object_store import plain_http
from packing import flipped
from samples import image_folder
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.packing.pack import pack
from stoker.data.stored_shards import StoredShards, within
from stoker.errors import StokerError
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")

SHARD = r"set/train/.*\.tar"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=16)
    return pack(folder, root / "web" / "set", workers=1, shard_images=8, val_share=0)


@pytest.fixture
def proxy(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_CACHE_GB", "1")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with plain_http(packed.parent) as server, fault_proxy(server.endpoint) as started:
        yield started


def opened(proxy: FaultProxy) -> tuple[SplitIndex, StoredShards]:
    split = Dataset(f"{proxy.endpoint}/set").split("train")
    assert isinstance(split.source, StoredShards)
    return split, split.source


def own(packed: Path, split: SplitIndex, number: int) -> bytes:
    return (packed / "train" / split.shards[number]["name"]).read_bytes()


def test_a_shard_is_fetched_once_and_released(proxy: FaultProxy, packed: Path) -> None:
    split, source = opened(proxy)
    for _ in range(3):
        assert split.whole_shard(1).tobytes() == own(packed, split, 1)
    assert source.fetched == 1
    assert len(source.files(range(4))) == 1
    source.forget([1])
    assert source.files(range(4)) == []
    assert split.whole_shard(1).tobytes() == own(packed, split, 1)


def test_without_a_cache_images_are_read_alone(
    proxy: FaultProxy, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE_GB", "0")
    split, source = opened(proxy)
    local = Dataset(packed).split("train")
    split.gather(split.shard[:0].astype("int64"))
    for sample in range(len(split)):
        assert split.bytes_of(sample) == local.bytes_of(sample)
    assert (source.fetched, source.ranges) == (0, len(split))
    assert source.renew(0)
    assert source.files([0]) == []


def test_a_damaged_copy_is_replaced_and_an_intact_one_kept(proxy: FaultProxy, packed: Path) -> None:
    split, source = opened(proxy)
    split.whole_shard(0)
    assert source.renew(0)
    assert source.fetched == 1
    (file,) = source.files([0])
    file.write_bytes(flipped(file.read_bytes(), 1000))
    assert source.renew(0)
    assert source.fetched == 2
    assert split.whole_shard(0).tobytes() == own(packed, split, 0)


def test_threads_that_met_the_same_damage_fetch_once(proxy: FaultProxy) -> None:
    split, source = opened(proxy)
    split.whole_shard(0)
    (file,) = source.files([0])
    file.write_bytes(flipped(file.read_bytes(), 1000))
    threads = [threading.Thread(target=source.renew, args=(0,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert source.fetched == 2


def test_an_end_stops_the_threads_of_before_and_no_others(proxy: FaultProxy, packed: Path) -> None:
    split, source = opened(proxy)
    rule = proxy.fault("stall_body", key=SHARD, seconds=600)
    errors: list[BaseException] = []

    def read() -> None:
        for _ in range(2):  # the second one begins after the end
            try:
                split.whole_shard(0)
            except StokerError as error:
                errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: rule.seen)
    source.close()
    thread.join(60)
    assert [str(error) for error in errors] == ["loading was stopped"] * 2
    assert split.whole_shard(0).tobytes() == own(packed, split, 0)


def test_the_end_of_the_program_stops_everything(proxy: FaultProxy) -> None:
    split, source = opened(proxy)
    source.abandon()
    with pytest.raises(StokerError, match="loading was stopped"):
        split.whole_shard(0)


def test_trouble_with_the_cache_is_told_once(
    proxy: FaultProxy, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, source = opened(proxy)
    notes: list[str] = []
    source.tell(notes.append)

    def fails(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("stoker.stores.cache.FileCache.fetch", fails)
    for number in range(4):
        assert split.whole_shard(number).tobytes() == own(packed, split, number)
    (note,) = notes
    assert "cannot be used (Read-only file system): images are read one by one" in note


@pytest.mark.parametrize(
    ("share", "expected"), [(0, []), (10, [2]), (25, [2, 0]), (100, [2, 0, 1])]
)
def test_as_many_as_fit_are_fetched_ahead(share: int, expected: list[int]) -> None:
    assert within([2, 2, 0, 2, 1], [{"bytes": 10}] * 3, share) == expected
