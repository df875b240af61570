"""The cache of a set that is read from a store: full, deleted, damaged, shared, and killed.

Every batch has the bytes of the local folder, whatever happens to the cache, and its limit holds.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disks import small_file_system
from fault_proxy import FaultProxy
from object_store import Gateway
from packing import flipped
from samples import image_folder
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.packing.pack import pack
from stoker.errors import StokerError
from stoker.stores.cache import FileCache
from stored_sets import client_at, copied
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")
pytestmark = pytest.mark.exact

SHARD = r".*/train/.*\.tar"
READS = """
import hashlib, sys
from stoker import BatchLoader, Dataset, Order
from stoker.data.loading.crops import View
from stoker.recipe.schedule import Batch

data = Dataset(sys.argv[1])
split = data.split("train")
order = Order(split.shard_sizes, data.fingerprint, 0, 1)
loader = BatchLoader(split, order, View("resized"), threads=3)
digest = hashlib.sha256()
for loaded in loader.batches(Batch(n, 8 * n, 8, 16) for n in range(len(split) // 8)):
    digest.update(loaded.images.tobytes() + loaded.labels.tobytes())
loader.close()
print(digest.hexdigest())
"""
"""Without torch, which takes long to import."""
OPENS = """
import hashlib, json, random, sys
from stoker.data.dataset import Dataset

location, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
split = Dataset(location).split("train")
chance = random.Random(seed)
for _ in range(rounds):
    number = chance.randrange(len(split.shards))
    data = split.whole_shard(number)
    assert hashlib.sha256(data.tobytes()).hexdigest() == split.shards[number]["sha256"]
    if chance.random() < 0.5:
        split.source.close()
print("done")
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 images in twelve shards."""
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=48)
    return pack(folder, root / "packed", workers=1, shard_images=8, val_share=0)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def location(
    gateway: Gateway,
    bucket: str,
    proxy: FaultProxy,
    packed: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The set in a bucket that is reached through the proxy."""
    for name, value in gateway.variables.items():
        monkeypatch.setenv(name, value)
    copied(packed, f"s3://{bucket}/set")
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("STOKER_CACHE", str(cache))
    return f"s3://{bucket}/set"


def local_bytes(packed: Path, split: SplitIndex, number: int) -> bytes:
    return (packed / "train" / split.shards[number]["name"]).read_bytes()


def fetched_shards(proxy: FaultProxy) -> Counter[str]:
    """How often each shard was asked for whole."""
    whole = [asked.key for asked in proxy.asked if asked.key[-4:] == ".tar" and not asked.range]
    return Counter(whole)


def require_equal(packed: Path, split: SplitIndex) -> None:
    """Every shard has the bytes of the local one."""
    for number in range(len(split.shards)):
        assert split.whole_shard(number).tobytes() == local_bytes(packed, split, number)


def python(script: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reader(data: str | Path) -> subprocess.Popen[str]:
    """A process that loads an epoch."""
    return python(READS, data)


def loaded(process: subprocess.Popen[str]) -> str:
    """The hash of the batches that a process has loaded."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


@contextmanager
def killed_at_the_end(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def test_an_object_that_is_replaced_in_mid_download_is_not_mixed(
    proxy: FaultProxy, location: str, packed: Path, cache: Path, bucket: str
) -> None:
    """The first half is of one version, the rest would be of another."""
    split = Dataset(location).split("train")
    name = f"train/{split.shards[0]['name']}"
    data = (packed / name).read_bytes()
    client = client_at(location)

    def replace(chunk: memoryview) -> None:
        if not received:
            client.write(name, flipped(data, len(data) - 1000))
        received.extend(chunk)

    received = bytearray()
    proxy.fault("reset_body", key=f"{bucket}/set/{name}")
    client.stream(name, len(data), replace)
    assert len(received) == len(data)
    with pytest.raises(StokerError, match="is damaged"):
        split.whole_shard(0)
    client.write(name, data)
    assert split.whole_shard(0).tobytes() == data


def test_a_full_disk_is_no_reason_to_stop(
    location: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_file_system(tmp_path / "small", "160k") as small:
        monkeypatch.setenv("STOKER_CACHE", str(small / "cache"))
        monkeypatch.setenv("STOKER_CACHE_GB", "1")
        split = Dataset(location).split("train")
        require_equal(packed, split)
        split.source.close()
        del split


def test_a_disk_that_is_full_from_the_start_is_named(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_file_system(tmp_path / "small", "64k") as small:
        monkeypatch.setenv("STOKER_CACHE", str(small / "cache"))
        monkeypatch.setenv("STOKER_CACHE_GB", "1")
        (small / "filler").write_bytes(bytes(64 << 10))
        with pytest.raises(StokerError, match="is full: free some of it, or name"):
            Dataset(location).split("train")


def test_a_cache_that_becomes_read_only_is_passed_over(
    location: str,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with small_file_system(tmp_path / "small", "8m") as small:
        monkeypatch.setenv("STOKER_CACHE", str(small / "cache"))
        monkeypatch.setenv("STOKER_CACHE_GB", "1")
        # By another process: this one must not have a file open for writing.
        assert loaded(python(OPENS, location, 0, 1)) == "done\n"
        split = Dataset(location).split("train")
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        require_equal(packed, split)
        noted = capsys.readouterr().err
        assert noted.count("cannot be used (Read-only file system)") == 1
        split.source.close()
        del split


def test_a_cache_that_is_deleted_is_made_again(location: str, packed: Path, cache: Path) -> None:
    split = Dataset(location).split("train")
    for number in range(len(split.shards)):
        if number % 4 == 1:
            shutil.rmtree(cache)
        assert split.whole_shard(number).tobytes() == local_bytes(packed, split, number)
    assert len(list((cache / "files").iterdir())) >= 3


def test_a_bit_that_rots_in_the_cache_is_noticed_and_mended(
    proxy: FaultProxy, location: str, packed: Path, cache: Path
) -> None:
    expected = loaded(reader(packed))
    assert loaded(reader(location)) == expected
    split = Dataset(location).split("train")
    for number, facts in enumerate(split.shards):
        file = cache / "files" / facts["sha256"]
        images = [s for s in range(len(split)) if int(split.shard[s]) == number]
        data = file.read_bytes()
        for sample in images[:2]:  # two of one shard, met by two threads
            data = flipped(data, int(split.offset[sample] + split.length[sample] // 2))
        file.write_bytes(data)
    proxy.calm()
    assert loaded(reader(location)) == expected
    assert max(fetched_shards(proxy).values()) == 1


def test_what_a_kill_leaves_is_removed(
    proxy: FaultProxy, location: str, packed: Path, cache: Path
) -> None:
    rule = proxy.fault("stall_body", key=SHARD, times=None)
    process = reader(location)
    with killed_at_the_end(process):
        until(lambda: rule.seen and list((cache / "files").glob("*.part")))
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert list((cache / "files").glob("*.part"))
    proxy.calm()
    assert loaded(reader(location)) == loaded(reader(packed))
    assert not list((cache / "files").glob("*.part"))


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_what_is_fetched(
    processes: int, proxy: FaultProxy, location: str, packed: Path
) -> None:
    expected = loaded(reader(packed))
    running = [reader(location) for _ in range(processes)]
    with killed_at_the_end(*running):
        assert {loaded(process) for process in running} == {expected}
    counts = fetched_shards(proxy)
    assert set(counts.values()) == {1}


def test_a_small_cache_is_kept_within_its_limit_under_pressure(
    location: str, packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes open shards at random; the cache has room for four of twelve."""
    largest = max(path.stat().st_size for path in (packed / "train").glob("*.tar"))
    index = (packed / "train" / "index.parquet").stat().st_size
    limit = 4 * largest + index
    monkeypatch.setenv("STOKER_CACHE_GB", f"{limit / 1e9:.9f}")
    running = [python(OPENS, location, seed, 60) for seed in range(3)]
    with killed_at_the_end(*running):
        watched = FileCache(cache, limit)
        looks = 0
        while any(process.poll() is None for process in running):
            assert watched.bytes_used <= limit + 1
            looks += 1
        assert looks > 10
        for process in running:
            output, errors = process.communicate(timeout=60)
            assert (process.returncode, output) == (0, "done\n"), errors
