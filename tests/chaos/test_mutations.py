"""Ten thousand damaged files: each is accepted and then decodes, or is rejected with a reason.

A quarter of them is made here, another one with the next commit; `--whole` makes them all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bounded import Ended, contents, stoker
from every_crop import seen
from mutations import SOURCES, mutated
from samples import picture
from shares import share
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View

FILES = 10_000
BATCHES = 4
EACH = FILES // BATCHES
PEAK_MIB = 1024
FLAGS = ("--workers", "2", "--shard-images", "400", "--spot-notice", "off")
VIEWS = [View(crop="centre"), View(crop="resized", crop_scale=0.08, hflip=True, seed=1)]


@dataclass
class Batch:
    """A folder of damaged files, packed by the command."""

    root: Path
    ended: Ended
    before: dict[str, str]
    after: dict[str, str]

    @property
    def out(self) -> Path:
        return self.root / "packed"

    @property
    def stored(self) -> list[dict[str, Any]]:
        tables = [self.out / split / "index.parquet" for split in ("train", "val")]
        return [row for table in tables for row in pq.read_table(table).to_pylist()]

    @property
    def rejected(self) -> list[dict[str, Any]]:
        return pq.read_table(self.out / "rejected.parquet").to_pylist()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    whole = metafunc.config.getoption("--whole")
    batches = share("mutations", range(BATCHES), BATCHES, whole=whole)
    metafunc.parametrize("batch", batches, indirect=True, scope="module")


@pytest.fixture(scope="module")
def batch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    root = tmp_path_factory.mktemp("mutations")
    for split in ("train", "val"):
        for suffix in SOURCES:
            (root / "photos" / split / suffix).mkdir(parents=True)
        picture(0, 0, (24, 20)).save(root / "photos" / split / "jpg" / "good.jpg")
    for seed in range(request.param * EACH, (request.param + 1) * EACH):
        suffix, _, data = mutated(seed)
        (root / "photos" / "train" / suffix / f"{seed:05d}.{suffix}").write_bytes(data)
    (root / "bystander.txt").write_text("not to be touched")
    before = contents(root, but=root / "packed")
    ended = stoker("pack", root / "photos", root / "packed", *FLAGS, cwd=root)
    return Batch(root, ended, before, contents(root, but=root / "packed"))


def test_every_damaged_file_has_one_outcome(batch: Batch, tables: Any) -> None:
    assert batch.ended.code == 0, batch.ended.stderr[-2000:]
    assert "Traceback" not in batch.ended.stdout + batch.ended.stderr
    paths = Counter(row["path"] for row in batch.stored + batch.rejected)
    assert len(paths) == EACH + 2
    assert set(paths.values()) == {1}
    for row in batch.rejected:
        assert row["reason"]
        assert row["reason"].isprintable(), row
        assert len(row["reason"]) < 300, row
    report = Dataset(batch.out).description["report"]
    assert sum(row["images"] for row in report["rejected"]) == len(batch.rejected)
    counts = {"accepted": len(batch.stored), "rejected": len(batch.rejected)}
    tables.count("files with seeded damage", counts)


def test_what_was_accepted_decodes_twice_the_same(batch: Batch) -> None:
    assert seen(batch.out, (16,), VIEWS) == seen(batch.out, (16,), VIEWS)


def test_nothing_beside_the_set_was_touched(batch: Batch) -> None:
    assert batch.before == batch.after


def test_memory_stays_below_a_gigabyte(batch: Batch) -> None:
    assert batch.ended.peak_mib < PEAK_MIB
