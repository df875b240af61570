"""A set on a web server: what is damaged on its way is read again, and named where it stays so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_proxy import FaultProxy, fault_proxy
from object_store import plain_http
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.data.stored_set import StoredSet, is_unchanged
from stoker.errors import BadRequest, StokerError
from stoker.stores.location import location_of

pytest.importorskip("obstore", reason="no obstore: pip install obstore")

DAMAGE = ["wrong_bytes", "short_length", "truncated_ok", "gzip"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=8)
    return pack(folder, root / "web" / "set", workers=1, shard_images=8, val_share=0)


@pytest.fixture
def proxy(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_STORE_PATIENCE_S", "20")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with plain_http(packed.parent) as server, fault_proxy(server.endpoint) as started:
        yield started


def stored(proxy: FaultProxy) -> StoredSet:
    location = location_of(f"{proxy.endpoint}/set")
    assert location is not None
    return StoredSet(location)


def test_a_set_is_there_or_not(proxy: FaultProxy) -> None:
    assert stored(proxy).exists
    assert not Dataset.is_packed(f"{proxy.endpoint}/none")
    with pytest.raises(BadRequest, match="is not a packed set"):
        Dataset(f"{proxy.endpoint}/none")


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_description_is_read_again(proxy: FaultProxy, packed: Path, fault: str) -> None:
    proxy.fault(fault, key=r".*dataset\.json", times=2)
    assert stored(proxy).description() == (packed / "dataset.json").read_bytes()


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_description_that_stays_damaged_is_named(proxy: FaultProxy, fault: str) -> None:
    proxy.fault(fault, key=r".*dataset\.json", times=None)
    with pytest.raises(StokerError, match="is damaged"):
        Dataset(f"{proxy.endpoint}/set")
    assert len(proxy.asked) == 3


def test_an_index_that_is_gone_is_named(proxy: FaultProxy) -> None:
    proxy.fault("stale_not_found", method="HEAD", key=r".*index\.parquet", times=None)
    with pytest.raises(StokerError, match=r"train/index\.parquet is missing: upload the set"):
        Dataset(f"{proxy.endpoint}/set").split("train")


def test_an_index_is_fetched_once(proxy: FaultProxy) -> None:
    for _ in range(2):
        Dataset(f"{proxy.endpoint}/set").split("train")
    gets = [a for a in proxy.asked if a.method == "GET" and a.key.endswith("index.parquet")]
    assert len(gets) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", False),
        (b"[]", False),
        (b"\xff", False),
        (b"[" * 100_000, False),
        (b'{"format": 1}', True),
        (b'{"format": 1, "digest": "0"}', False),
    ],
)
def test_what_matches_its_seal(text: bytes, expected: bool) -> None:
    assert is_unchanged(text) is expected


def test_a_packed_description_matches_its_seal(packed: Path) -> None:
    text = (packed / "dataset.json").read_bytes()
    assert is_unchanged(text)
    changed = {**json.loads(text), "classes": ["other"]}
    assert not is_unchanged(json.dumps(changed).encode())
