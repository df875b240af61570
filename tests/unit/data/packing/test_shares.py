"""A pack in shares has the bytes of a pack on one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from packing import as_folder, as_tar, contents, members
from stoker.data.images.encode import Storage
from stoker.data.packing.options import PackOptions
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import ShardReport
from stoker.data.packing.shares import SharedPack
from stoker.errors import BadRequest, StokerError

OPTIONS = PackOptions(shard_images=3, workers=1)


def ignore(report: ShardReport) -> None:
    pass


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return as_folder(tmp_path / "photos", members(classes=2, images=9))


def shared(source: Path, out: Path) -> SharedPack:
    return SharedPack.of(str(source), out, Storage(), OPTIONS)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 1, 0, 2)])
def test_shares_in_any_order_make_the_same_set(
    photos: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    pack(photos, tmp_path / "one", shard_images=3, workers=1)
    job = shared(photos, tmp_path / "two")
    request, shards = job.prepare()
    assert shards == len(list((tmp_path / "one").glob("*/*.tar")))
    reports: list[ShardReport] = []
    for share in order:
        job.write(request, share, 3, reports.append)
    assert len(reports) == shards + (shards // 3 if len(order) > 3 else 0)
    assert not (tmp_path / "two" / "dataset.json").exists()
    pack(photos, tmp_path / "two", shard_images=3, workers=1)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_a_late_share_leaves_a_finished_set_alone(photos: Path, tmp_path: Path) -> None:
    job = shared(photos, tmp_path / "out")
    request, _ = job.prepare()
    pack(photos, tmp_path / "out", shard_images=3, workers=1)
    before = contents(tmp_path / "out")
    job.write(request, 0, 2, ignore)
    assert contents(tmp_path / "out") == before
    assert job.prepare()[0] == request


def test_a_source_that_changed_is_not_mixed_in(photos: Path, tmp_path: Path) -> None:
    job = shared(photos, tmp_path / "out")
    request, _ = job.prepare()
    as_folder(photos, [("class0/new.jpg", members()[0][1])])
    with pytest.raises(StokerError, match="changed"):
        job.write(request, 0, 2, ignore)
    assert job.prepare()[0] != request


def test_what_is_read_as_a_stream_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos.tar").write_bytes(as_tar(members()))
    for source in (str(tmp_path / "photos.tar"), "-"):
        with pytest.raises(BadRequest):
            SharedPack.of(source, tmp_path / "out", Storage(), OPTIONS).prepare()
    assert not (tmp_path / "out").exists()


def test_a_foreign_target_is_refused(photos: Path, tmp_path: Path) -> None:
    as_folder(tmp_path / "out", [("notes.txt", b"mine")])
    with pytest.raises(BadRequest, match=r"notes\.txt"):
        shared(photos, tmp_path / "out").prepare()
