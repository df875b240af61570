"""Packing on a real Spark: the suite of all places, workers that lack something, stop signals."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pack_conformance import (
    MANY_A_SHARD,
    SHARD_IMAGES,
    PackConformance,
    PackPlace,
    many_images,
    messy_folder,
    times,
)
from packing import contents, run_pack, start_pack
from spark_cluster import SETTINGS, StandaloneSpark, flags, missing
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import ShardReport
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED
from stoker.fleet.spark.session import SparkCluster
from stoker.study.spark_packing import SparkPlace
from waiting import until

pytestmark = [pytest.mark.exact, pytest.mark.timeout(600)]
OTHER_PYTHON = """
import sys
parts = {"major": 3, "minor": 99, "micro": 0}
sys.version_info = type("version_info", (tuple,), parts)((3, 99, 0, "final", 0))
"""
"""Makes any Python say that it is another one."""
KILLED_AFTER = 60
STOPPED_WITHIN_S = 30
"""Seconds within which a stopped command has ended, on a machine that is busy with Spark."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    if reason := missing():
        pytest.skip(reason)
    cluster = StandaloneSpark(tmp_path_factory.mktemp("spark"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="class")
def lines() -> list[str]:
    """What the session said."""
    return []


@pytest.fixture(scope="class")
def session(spark: StandaloneSpark, lines: list[str]) -> Iterator[SparkCluster]:
    """One session for several packs: beginning one takes longer than they do. It has all cores of
    the cluster until it ends."""
    with SparkCluster(spark.master, SETTINGS, lines.append) as cluster:
        yield cluster


class OnSpark:
    """The workers of a real master."""

    forms = ("folder", "list", "table", "archive")

    def __init__(self, spark: StandaloneSpark, session: SparkCluster) -> None:
        self.spark, self.session = spark, session

    def pack(self, source: Path, out: Path, shard_images: int) -> None:
        place = SparkPlace(self.session, out)
        pack(source, out, shard_images=shard_images, place=place)

    def pack_with_a_kill(self, source: Path, out: Path, shard_images: int) -> None:
        killed = []

        def kill(report: ShardReport, done: int, total: int) -> None:
            if not killed and done >= KILLED_AFTER:
                killed.append(done)
                self.spark.kill_worker(1)

        place = SparkPlace(self.session, out)
        pack(source, out, shard_images=shard_images, place=place, progress=kill)
        assert killed
        self.spark.start_worker(1)


class TestPackingOnSpark(PackConformance):
    @pytest.fixture
    def place(self, spark: StandaloneSpark, session: SparkCluster) -> PackPlace:
        return OnSpark(spark, session)

    def test_counted_by_the_workers_the_set_is_the_same(
        self, session: SparkCluster, tmp_path: Path
    ) -> None:
        source = messy_folder(tmp_path / "photos")
        pack(source, tmp_path / "here", shard_images=SHARD_IMAGES, workers=1)
        place = SparkPlace(session, tmp_path / "there", count_rows=1)
        pack(source, tmp_path / "there", shard_images=SHARD_IMAGES, place=place)
        assert contents(tmp_path / "there") == contents(tmp_path / "here")

    def test_it_says_where_it_runs(self, session: SparkCluster, lines: list[str]) -> None:
        assert session.tasks.slots() >= 1
        assert lines[0].startswith(f"Spark at {session.master}: ")


def is_alive(group: int) -> bool:
    """Whether a process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class TestTheCommand:
    def test_a_stop_keeps_what_is_done_and_the_same_command_goes_on(
        self, spark: StandaloneSpark, tmp_path: Path
    ) -> None:
        source, out = many_images(tmp_path / "many"), tmp_path / "there"
        words = ("--shard-images", str(MANY_A_SHARD), "--on", spark.master, *flags())
        process = start_pack(source, out, *words)
        try:
            until(lambda: list((out / ".parts").glob("[!.]*.parquet")) or process.poll(), 240)
            os.killpg(process.pid, signal.SIGINT)
            began = time.monotonic()
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == INTERRUPTED, output
        assert time.monotonic() - began < STOPPED_WITHIN_S
        assert output.splitlines()[-1].startswith("stoker: packing stopped (SIGINT); finished")
        assert not (out / "dataset.json").exists()
        until(lambda: not is_alive(process.pid))  # Java is in its group
        parts = [part.stem for part in (out / ".parts").glob("[!.]*.parquet")]
        tars = {out / f"{name.replace('-', '/', 1)}.tar" for name in parts}
        kept = {path: when for path, when in times(out).items() if path in tars}
        assert kept
        code, output = run_pack(source, out, *words)
        assert code == FINISHED, output
        assert kept.items() <= times(out).items()
        pack(source, tmp_path / "here", shard_images=MANY_A_SHARD, workers=2)
        assert contents(out) == contents(tmp_path / "here")

    def test_a_worker_without_the_packages_is_named_with_what_to_install(
        self, spark: StandaloneSpark, tmp_path: Path
    ) -> None:
        bare = getattr(sys, "_base_executable", sys.executable)
        if bare == sys.executable:
            pytest.skip("this Python has no other one beside it that lacks the packages")
        source, out = messy_folder(tmp_path / "photos"), tmp_path / "out"
        words = ("--on", spark.master, *flags(spark_pyspark_python=bare))
        code, output = run_pack(source, out, *words)
        assert code == BAD_REQUEST, output
        line = output.splitlines()[-1]
        assert "simplejpeg" in line and "pip install" in line and "PYSPARK_PYTHON" in line
        assert not out.exists()

    def test_another_python_on_the_workers_is_named(self, tmp_path: Path) -> None:
        if reason := missing():
            pytest.skip(reason)
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(OTHER_PYTHON)
        source = messy_folder(tmp_path / "photos")
        path = flags(spark_executorEnv_PYTHONPATH=str(tmp_path / "site"))
        code, output = run_pack(source, tmp_path / "out", "--on", "local[1]", *path)
        assert code == FAILED, output
        assert "Python 3.99" in output and "PYSPARK_PYTHON" in output
