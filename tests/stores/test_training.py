"""Training and loading from a real Ceph gateway: the bits of a folder, and few requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from integration import namespaces
from object_store import Gateway, Served, ceph, missing_ceph
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.data.stored_set import TRAIN_SHARE
from stoker.run.directory import Run
from waiting import until

READ_SET = Path(__file__).with_name("read_set.py")
TESTS = Path(__file__).parents[1]
TINY = "--model resnet9_w2 --image-size 8 --batch-size 64 --crop pad --crop-pad 1 --threads 1"


def make_set(root: Path, images: int, shard_images: int) -> Path:
    photos = image_folder(root / "photos", classes=2, images=images, val=20, size=(12, 10))
    return pack(photos, root / "packed", shard_images=shard_images, val_share=0, workers=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 images in 24 shards, and 40 for evaluation."""
    return make_set(tmp_path_factory.mktemp("small"), 600, 50)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8,400 images in 42 shards: two lanes, each longer than a window."""
    return make_set(tmp_path_factory.mktemp("lanes"), 4200, 200)


def stoker_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "stoker", *words]


def run_here(command: list[str], variables: Mapping[str, str], cwd: Path) -> str:
    """What a command printed; it must end with 0."""
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def stored(gateway: Gateway, bucket: str, small: Path, tmp_path: Path) -> str:
    """The small set in a bucket of its own."""
    return uploaded(gateway, bucket, small, tmp_path)


def uploaded(gateway: Gateway, bucket: str, folder: Path, cwd: Path) -> str:
    location = f"s3://{bucket}/set"
    run_here(stoker_command("upload", str(folder), location), gateway.variables, cwd)
    return location


FLAGS = [*TINY.split(), "--epochs", "2", "--no-report", "--checkpoint-interval", "0.2"]


@pytest.fixture(scope="module")
def local(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from the folder, to compare with."""
    folder = tmp_path_factory.mktemp("local")
    run_here(stoker_command("train", str(small), "--run", "run", *FLAGS), {}, folder)
    return folder / "run"


def with_cache(gateway: Gateway, folder: Path, limit_bytes: int | None = None) -> dict[str, str]:
    limit = {"STOKER_CACHE_GB": f"{limit_bytes / 1e9:.9f}"} if limit_bytes is not None else {}
    return {**gateway.variables, "STOKER_CACHE": str(folder), **limit}


def shard_gets(rows: list[Served], bucket: str) -> list[Served]:
    return [row for row in rows if row.bucket == bucket and row.key.endswith(".tar")]


def losses(run: Path) -> list[tuple[int, list[float]]]:
    return [(event["step"], event["sums"]) for event in Run(run).merged("step")]


def last_weights(run: Path) -> bytes:
    name = (run / "last").read_text()
    return (run / "checkpoints" / name / "weights.safetensors").read_bytes()


def set_bytes(packed: Path) -> int:
    return sum(file.stat().st_size for file in packed.rglob("*.tar"))


@pytest.mark.exact
@pytest.mark.parametrize("limit", ["a tenth", "nothing", "all"])
def test_a_run_from_a_store_has_the_bits_of_one_from_a_folder(
    limit: str, gateway: Gateway, stored: str, small: Path, local: Path, tmp_path: Path
) -> None:
    most = {"a tenth": set_bytes(small) // 10, "nothing": 0, "all": None}[limit]
    variables = with_cache(gateway, tmp_path / "cache", most)
    run_here(stoker_command("train", stored, "--run", "remote", *FLAGS), variables, tmp_path)
    remote = tmp_path / "remote"
    assert losses(local) == losses(remote)
    assert last_weights(local) == last_weights(remote)
    assert Run(remote).record["data"] == stored
    if most:
        files = list((tmp_path / "cache" / "files").iterdir())
        splits = Dataset(small).description["splits"]
        shards = {shard["sha256"] for shard in splits["train"]["shards"]}
        kept = sum(file.stat().st_size for file in files if file.name in shards)
        assert kept <= most


@pytest.mark.exact
def test_a_run_from_a_store_with_the_index_in_partitions(
    gateway: Gateway, bucket: str, small: Path, local: Path, tmp_path: Path
) -> None:
    """The set is packed into the bucket, and only its tables differ from those of the folder."""
    location = f"s3://{bucket}/set"
    lines = f"""
        from parted_sets import parted
        from stoker.data.packing.pack import pack
        with parted():
            pack("{small.parent / "photos"}", "{location}", shard_images=50, val_share=0, workers=1)
    """
    variables = {**with_cache(gateway, tmp_path / "cache"), "PYTHONPATH": str(TESTS)}
    run_here([sys.executable, "-c", dedent(lines)], variables, tmp_path)
    run_here(stoker_command("train", location, "--run", "remote", *FLAGS), variables, tmp_path)
    assert losses(local) == losses(tmp_path / "remote")
    assert last_weights(local) == last_weights(tmp_path / "remote")
    served = [row for row in gateway.requests() if row.bucket == bucket]
    rows = [row.key for row in served if "/rows/" in row.key]
    assert len(rows) == len(set(rows)), "the rows of a shard were fetched twice"
    printed = run_here(stoker_command("verify", location), variables, tmp_path)
    assert "all hashes match" in printed


@pytest.mark.exact
def test_a_killed_run_resumes_with_a_warm_cache(
    gateway: Gateway, bucket: str, stored: str, local: Path, tmp_path: Path
) -> None:
    variables = with_cache(gateway, tmp_path / "cache")
    kill = [{"fault": "kill", "at": "decode", "step": 25}]
    killed = subprocess.run(
        stoker_command("train", stored, "--run", "remote", *FLAGS),
        env={**os.environ, **variables, "STOKER_FAULTS": json.dumps(kill)},
        cwd=tmp_path,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    run_here(stoker_command("train", stored, "--run", "remote", *FLAGS), variables, tmp_path)
    assert losses(local) == losses(tmp_path / "remote")
    assert last_weights(local) == last_weights(tmp_path / "remote")
    gets = Counter(row.key for row in shard_gets(gateway.requests(), bucket) if not row.range)
    assert gets and max(gets.values()) == 1, "a shard was fetched twice"


def test_two_ranks_of_a_host_fetch_each_shard_once(
    gateway: Gateway, bucket: str, packed: Path, tmp_path: Path
) -> None:
    stored = uploaded(gateway, bucket, packed, tmp_path)
    variables = {**os.environ, **with_cache(gateway, tmp_path / "cache"), "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(READ_SET), stored, str(rank), "2", "131"],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]
    for number, result in enumerate(results):
        local = run_here(
            [sys.executable, str(READ_SET), str(packed), str(number), "2", "131"], {}, tmp_path
        )
        assert json.loads(local)["digest"] == result["digest"]
    shards = len(list((packed / "train").glob("*.tar")))
    fetched = sum(result["counts"][0] for result in results)
    assert 0 < fetched <= shards
    whole = until(lambda: whole_gets(gateway, bucket, fetched))
    assert max(whole.values()) == 1


def whole_gets(gateway: Gateway, bucket: str, least: int) -> Counter[str] | None:
    """How often each shard was fetched whole, once the log has so many requests."""
    rows = shard_gets(gateway.requests(), bucket)
    counts = Counter(row.key for row in rows if not row.range)
    return counts if counts.total() >= least else None


@pytest.fixture
def hosts() -> Iterator[list[Any]]:
    if reason := namespaces.missing() or missing_ceph():
        pytest.skip(reason)
    cluster = namespaces.Cluster(3)
    try:
        yield cluster.machines
    finally:
        cluster.remove()


def test_two_hosts_fetch_disjoint_shards_but_for_the_edges_of_lanes(
    hosts: list[Any], packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, *readers = hosts
    inside = ("ip", "netns", "exec", server.space)
    with ceph(address=server.address, inside=inside) as gateway:
        bucket = gateway.make_bucket("lanes")
        for name, value in gateway.variables.items():
            monkeypatch.setenv(name, value)
        largest = max(file.stat().st_size for file in (packed / "train").glob("*.tar"))
        log = tmp_path / "upload.log"
        location = f"s3://{bucket}/set"
        assert readers[0].start(["upload", str(packed), location], tmp_path, log).wait(300) == 0, (
            log.read_text()
        )
        processes = []
        for number, reader in enumerate(readers):
            own = [packed / key.removeprefix("set/") for key in lane_shards(packed, number)]
            room = sum(file.stat().st_size for file in own) + largest // 2
            variables = with_cache(gateway, tmp_path / f"cache{number}", int(room / TRAIN_SHARE))
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            words = [str(READ_SET), location, str(number), "2", "40"]
            log = tmp_path / f"{number}.log"
            processes.append((reader.start([], tmp_path, log, program=words), log))
        for process, log in processes:
            assert process.wait(300) == 0, log.read_text()
        rows = until(lambda: [r for r in shard_gets(gateway.requests(), bucket) if not r.range])
        for lane, reader in enumerate(readers):
            fetched = {row.key for row in rows if row.client == reader.address}
            own = lane_shards(packed, lane)
            assert own <= fetched
            # The cache may have room for one shard more, which the next epoch needs.
            assert len(fetched - own) <= 1
        assert len(lane_shards(packed, 0) & lane_shards(packed, 1)) <= 1


def lane_shards(packed: Path, lane: int) -> set[str]:
    """The shards of one of two lanes in the first epoch."""
    dataset = Dataset(packed)
    split = dataset.split("train")
    plan = Order(split.shard_sizes, dataset.fingerprint, 0, lanes=2).plan(0)
    edges = plan.lane_starts[lane], plan.lane_starts[lane + 1] - 1
    first, last = np.searchsorted(plan.starts, edges, side="right") - 1
    return {f"set/train/{number:05d}.tar" for number in plan.shards[first : last + 1].tolist()}


def test_the_set_of_a_run_is_read_without_its_name_where_it_was_named(
    gateway: Gateway, stored: str, tmp_path: Path
) -> None:
    here, elsewhere = (with_cache(gateway, tmp_path / name) for name in ("here", "elsewhere"))
    run_here(stoker_command("train", stored, "--run", "run", *FLAGS), here, tmp_path)
    evaluate = stoker_command("evaluate", "run")
    assert "top-1" in run_here(evaluate, here, tmp_path)
    with pytest.raises(AssertionError, match="if you trust it, name it"):
        run_here(evaluate, elsewhere, tmp_path)
    assert "top-1" in run_here([*evaluate, stored], elsewhere, tmp_path)
    assert "top-1" in run_here(evaluate, elsewhere, tmp_path)
