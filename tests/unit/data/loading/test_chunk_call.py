"""The compiled extra makes chunks where it is there, is new enough and shows the right bytes."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from golden import check_golden
from samples import image_folder
from stoker import faults
from stoker.data.dataset import Dataset
from stoker.data.images import jpeg_region
from stoker.data.loading import chunk_call
from stoker.data.loading.crops import View
from stoker.data.loading.hash_check import HashCheck
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder
from stoker.data.packing.pack import pack


def search(monkeypatch: pytest.MonkeyPatch, extra: object, decodes: bool = True) -> tuple:
    monkeypatch.setitem(sys.modules, "stoker_region", extra)
    monkeypatch.setattr(jpeg_region, "decode_region", object() if decodes else None)
    return chunk_call.find()


class TestFind:
    def test_one_that_decodes_other_pixels_is_not_asked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jpeg_region, "WHY_NOT", jpeg_region.DISAGREES)
        extra = SimpleNamespace(fill=None)
        assert search(monkeypatch, extra, decodes=False) == (None, jpeg_region.DISAGREES)

    def test_the_first_version_is_used_for_regions_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        extra = SimpleNamespace(decode_region=lambda *call: None, WIDEST=48)
        assert search(monkeypatch, extra) == (None, chunk_call.OUTDATED)

    @pytest.mark.parametrize("outcome", [0, 1])
    def test_one_that_shows_other_bytes_is_not_used(
        self, monkeypatch: pytest.MonkeyPatch, outcome: int
    ) -> None:
        def fill(rows, *call):  # type: ignore[no-untyped-def]
            return bytearray([outcome] * len(rows)), 0.0, 0.0

        extra = SimpleNamespace(fill=fill, SHOW=2)
        assert search(monkeypatch, extra) == (None, jpeg_region.DISAGREES)

    def test_one_that_refuses_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fill(*call: object) -> None:
            raise ValueError("Bogus input")

        extra = SimpleNamespace(fill=fill, SHOW=2)
        assert search(monkeypatch, extra) == (None, jpeg_region.DISAGREES)

    def test_reasons_golden(self) -> None:
        reasons = (jpeg_region.MISSING, jpeg_region.DISAGREES, chunk_call.OUTDATED)
        check_golden("region_extra", reasons)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = image_folder(tmp_path_factory.mktemp("set") / "photos", images=6, size=(60, 50))
    return Dataset(pack(folder, folder.parent / "packed", val_share=0, workers=1))


def test_injected_faults_of_reading_need_the_python_path(
    packed: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_call, "extra", SimpleNamespace())
    split = packed.split("train")
    for rows, compiled in (("[]", True), ('[{"fault": "stall", "at": "read"}]', False)):
        monkeypatch.setenv(faults.VARIABLE, rows)
        faults.arm()
        loader = BatchLoader(split, InOrder(), View(), threads=1)
        assert (loader._chunks is not None) == compiled
        loader.close()
    monkeypatch.delenv(faults.VARIABLE)
    faults.arm()


def test_stored_bytes_of_a_chunk_are_bounded(
    packed: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = packed.split("train")
    samples = InOrder().part(0, 18, 0, 18)[0]
    monkeypatch.setattr(chunk_call, "STORED_BYTES", int(split.length[:4].sum()))
    calls = chunk_call.ChunkCall(split, View(), HashCheck(split))
    rows = np.zeros((len(samples), chunk_call.COLUMNS), np.int64)
    rows[:, chunk_call.LENGTH] = split.length[samples]
    parts = list(calls._parts(rows))
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert (parts[0].start, parts[-1].stop) == (0, 18)
    for part in parts:
        total = int(split.length[part].sum())
        assert total <= chunk_call.STORED_BYTES
        assert rows[part][-1, chunk_call.PLACE] + rows[part][-1, chunk_call.LENGTH] == total
    monkeypatch.setattr(chunk_call, "STORED_BYTES", 1)
    assert len(list(calls._parts(rows))) == 18
