"""A large split on a web server: its rows come in parts, and what is damaged is asked for again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fault_proxy import FaultProxy, fault_proxy
from object_store import plain_http
from parted_sets import pack_both
from samples import image_folder
from stoker.data.copies.fetch import fetch
from stoker.data.dataset import Dataset
from stoker.data.index.parted_rows import PartedRows
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import Order
from stoker.data.stored_rows import StoredRows
from stoker.data.stored_shards import IN_USE
from stoker.data.verify import verify
from stoker.errors import StokerError
from stoker.recipe.schedule import Batch
from stoker.stores.location import location_of
from stoker.stores.settings import open_cache
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")

DAMAGE = ["wrong_bytes", "half_body", "internal"]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same set twice: `whole` and `parted`."""
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=32)
    pack_both(folder, root / "web", shard_images=8, val_share=0)
    return root / "web"


@pytest.fixture
def proxy(web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_CACHE_GB", "1")
    monkeypatch.setenv("STOKER_STORE_PATIENCE_S", "20")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with plain_http(web) as server, fault_proxy(server.endpoint) as started:
        yield started


def batches(place: object, steps: int = 8) -> list[tuple[bytes, list[int]]]:
    dataset = Dataset(str(place))
    split = dataset.split("train")
    order = Order(split.shard_sizes, dataset.fingerprint, 0, lanes=2, window=16)
    loader = BatchLoader(split, order, View(crop="resized"), threads=2)
    try:
        plan = [Batch(step, step * 16, 16, 16) for step in range(steps)]
        return [(b.images.tobytes(), b.labels.tolist()) for b in loader.batches(plan)]
    finally:
        loader.close()


def rows_asked(proxy: FaultProxy) -> list[str]:
    return [asked.key for asked in proxy.asked if "/rows/" in asked.key]


@pytest.mark.parametrize("cache_gb", ["1", "0", "0.00002"])
def test_batches_are_those_of_the_folder(
    proxy: FaultProxy, web: Path, monkeypatch: pytest.MonkeyPatch, cache_gb: str
) -> None:
    """With a cache, without one, and with one that has no room for a shard."""
    monkeypatch.setenv("STOKER_CACHE_GB", cache_gb)
    assert batches(f"{proxy.endpoint}/parted") == batches(web / "whole")


def test_a_warm_cache_has_the_rows(proxy: FaultProxy) -> None:
    first = batches(f"{proxy.endpoint}/parted")
    assert len(rows_asked(proxy)) == len(set(rows_asked(proxy))) == 8
    proxy.calm()
    assert batches(f"{proxy.endpoint}/parted") == first
    assert rows_asked(proxy) == []


def test_only_the_rows_of_shards_in_use_are_asked_for(proxy: FaultProxy) -> None:
    split = Dataset(f"{proxy.endpoint}/parted").split("train")
    assert rows_asked(proxy) == []
    split.labels[np.array([1, 17, 18, 60])]
    assert sorted({key.rpartition("/")[2] for key in rows_asked(proxy)}) == [
        "00000.parquet",
        "00002.parquet",
        "00007.parquet",
    ]
    split.close()


@pytest.mark.parametrize("cache_gb", ["1", "0"])
@pytest.mark.parametrize("fault", DAMAGE)
def test_rows_are_asked_for_again(
    proxy: FaultProxy, web: Path, monkeypatch: pytest.MonkeyPatch, fault: str, cache_gb: str
) -> None:
    monkeypatch.setenv("STOKER_CACHE_GB", cache_gb)
    proxy.fault(fault, key=r".*rows/.*", times=2)
    assert batches(f"{proxy.endpoint}/parted", 2) == batches(web / "whole", 2)
    assert any(asked.done == fault for asked in proxy.asked)


@pytest.mark.parametrize("cache_gb", ["1", "0"])
def test_rows_that_stay_damaged_are_named(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, cache_gb: str
) -> None:
    monkeypatch.setenv("STOKER_CACHE_GB", cache_gb)
    proxy.fault("wrong_bytes", key=r".*rows/00002.*", times=None)
    with pytest.raises(StokerError, match=r"parted/train/rows/00002\.parquet is damaged"):
        batches(f"{proxy.endpoint}/parted")


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_an_end_does_not_wait_for_rows(proxy: FaultProxy, end: str) -> None:
    """A loader that is closed, and a program that ends, while the store does not answer."""
    proxy.fault("stall_body", key=r".*rows/.*", times=None)
    split = Dataset(f"{proxy.endpoint}/parted").split("train")
    errors: list[StokerError] = []

    def read() -> None:
        with pytest.raises(StokerError) as error:
            split.labels[np.arange(20)]
        errors.append(error.value)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: rows_asked(proxy))
    assert isinstance(split.rows, PartedRows)
    files = split.rows._files
    assert isinstance(files, StoredRows) and files in IN_USE
    files.close() if end == "close" else files.abandon()
    thread.join(20)
    assert not thread.is_alive()
    assert "loading was stopped" in str(errors[0])


def test_a_table_that_is_gone_is_named(proxy: FaultProxy) -> None:
    proxy.fault("stale_not_found", method="HEAD", key=r".*shards\.parquet", times=None)
    with pytest.raises(StokerError, match=r"train/shards\.parquet is missing: upload the set"):
        Dataset(f"{proxy.endpoint}/parted").split("train")


def test_a_set_is_fetched_with_its_rows(proxy: FaultProxy, web: Path) -> None:
    location = location_of(f"{proxy.endpoint}/parted")
    assert location is not None
    report = fetch(Dataset(str(location)), location, open_cache(), ["train"])
    assert (report.here, report.shards, report.obstacle) == (8, 8, "")
    proxy.calm()
    assert batches(location) == batches(web / "whole")
    assert {asked.key.rpartition("/")[2] for asked in proxy.asked if asked.method == "GET"} == {
        "dataset.json"
    }


def test_it_verifies_on_the_server(proxy: FaultProxy, web: Path) -> None:
    there, here = verify(f"{proxy.endpoint}/parted"), verify(web / "parted")
    assert there.problems == here.problems == []
    assert (there.images, there.shards, there.bytes) == (here.images, here.shards, here.bytes)
