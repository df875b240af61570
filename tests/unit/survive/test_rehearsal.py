"""Before step 1 it is known that checkpoints fit and read back; what is in the way is named."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from disks import small_file_system
from stoker.errors import BadRequest, StokerError
from stoker.survive import rehearsal, storage
from stoker.survive.checkpoint import Snapshot, write_checkpoint
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.rehearsal import Reader, contents, rehearse
from stoker.survive.storage import require_space, reserve

MB = 1_000_000


def snapshot(floats: int = 1000) -> Snapshot:
    weights = {"kernel": torch.randn(floats), "batches": torch.tensor(7)}
    facts = {"step": 3, "position": 192, "best": 0.5}
    return Snapshot(weights, {"kernel": torch.zeros(floats)}, {"optimizer": {}}, facts)


class NeverAsked(Reader):
    """Stands in where a rehearsal ends before anybody reads."""

    def __init__(self) -> None:
        pass

    def read(self, folder: Path) -> dict[str, int]:
        raise AssertionError("nobody should have been asked")


class Says(NeverAsked):
    """Has read what it is told to have read."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def read(self, folder: Path) -> dict[str, int]:
        return self.counts


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the checkpoints of a run go."""
    (tmp_path / "run").mkdir()
    return Checkpoints(tmp_path / "run").folder


@pytest.fixture
def reader() -> Iterator[Reader]:
    started = Reader()
    yield started
    started.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "disk", "2000k") as disk:
        yield disk


class TestFreshProcess:
    def test_a_good_disk_passes_and_nothing_is_left(self, place: Path, reader: Reader) -> None:
        rehearsed = rehearse(place, snapshot(), reader, copies=3)
        assert rehearsed.bytes > 8000
        assert rehearsed.seconds > 0
        assert rehearsed.busy_s >= 0
        assert list(place.iterdir()) == []

    def test_a_checkpoint_that_changes_on_the_disk_is_refused(
        self, place: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def write_and_spoil(folder: Path, written: Snapshot) -> int:
            size = write_checkpoint(folder, written)
            data = bytearray((folder / "weights.safetensors").read_bytes())
            data[-1] ^= 1
            (folder / "weights.safetensors").write_bytes(data)
            return size

        monkeypatch.setattr(rehearsal, "write_checkpoint", write_and_spoil)
        with pytest.raises(StokerError) as refusal:
            rehearse(place, snapshot(), reader, copies=3)
        words = str(refusal.value)
        assert f"{place} was written, but another process cannot read it" in words
        assert "weights.safetensors is damaged" in words
        assert "\n" not in words
        assert list(place.iterdir()) == []

    def test_a_reader_that_nobody_needed_can_be_closed_twice(self, reader: Reader) -> None:
        reader.close()
        assert reader._process.poll() is not None
        reader.close()


class TestContents:
    def test_they_count_what_was_saved(self) -> None:
        found = contents(snapshot(10))
        assert found == {"weights": 11, "ema": 10, "step": 3, "position": 192}

    def test_something_else_read_back_is_refused(self, place: Path) -> None:
        other = {**contents(snapshot()), "step": 4}
        with pytest.raises(StokerError, match=r"reads back as other data: .*'step': 4"):
            rehearse(place, snapshot(), Says(other), copies=3)
        assert list(place.iterdir()) == []

    def test_checkpoints_beside_it_are_left_alone(self, place: Path) -> None:
        write_checkpoint(place / "000000003", snapshot())
        rehearse(place, snapshot(), Says(contents(snapshot())), copies=3)
        assert [path.name for path in place.iterdir()] == ["000000003"]

    def test_what_a_killed_rehearsal_left_is_no_checkpoint_and_goes(self, place: Path) -> None:
        write_checkpoint(place / rehearsal.FOLDER, snapshot())
        assert Checkpoints(place.parent).newest() == (None, [])
        rehearse(place, snapshot(), Says(contents(snapshot())), copies=3)
        assert list(place.iterdir()) == []


class TestRoom:
    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").write_text("in the way")
        with pytest.raises(BadRequest, match=r"cannot save a checkpoint in .*checkpoints: "):
            rehearse(tmp_path / "checkpoints", snapshot(), NeverAsked(), copies=3)
        assert (tmp_path / "checkpoints").read_text() == "in the way"

    def test_a_full_disk_ends_it_before_anybody_reads(self, small_disk: Path) -> None:
        place = small_disk / "checkpoints"
        with pytest.raises(BadRequest, match=r"cannot save a checkpoint in .*No space left"):
            rehearse(place, snapshot(300_000), NeverAsked(), copies=3)
        assert list(place.iterdir()) == []

    def test_room_for_one_is_not_enough(self, small_disk: Path) -> None:
        place, whole = small_disk / "checkpoints", snapshot(100_000)
        with pytest.raises(BadRequest) as refusal:
            rehearse(place, whole, Says(contents(whole)), copies=3)
        words = str(refusal.value)
        assert f"need 2 MB in {place}" in words
        assert "1 MB are free" in words
        assert "lower --keep-checkpoints, or name another --run" in words
        assert list(place.iterdir()) == []
        rehearse(place, whole, Says(contents(whole)), copies=1)

    def test_a_disk_with_room_is_left_as_it_was(self, small_disk: Path) -> None:
        require_space(small_disk, MB)
        assert list(small_disk.iterdir()) == []
        (small_disk / "fits").write_bytes(bytes(MB))

    @pytest.mark.parametrize(
        ("number", "says"), [(errno.ENOSPC, "MB are free"), (errno.EDQUOT, "the quota leaves less")]
    )
    def test_no_is_told_with_its_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
    ) -> None:
        def refuse(path: Path, size: int) -> int:
            path.touch()
            return number

        monkeypatch.setattr(storage, "reserve", refuse)
        with pytest.raises(BadRequest, match=f"need 3 MB in .*{says}"):
            require_space(tmp_path, 3 * MB)
        assert list(tmp_path.iterdir()) == []

    def test_a_disk_that_is_too_small_is_not_even_asked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(storage, "reserve", lambda path, size: pytest.fail("was asked"))
        with pytest.raises(BadRequest, match="need 1,000,000,000,000 MB"):
            require_space(tmp_path, 1_000_000_000_000 * MB)


class TestReserve:
    def test_a_disk_with_room_agrees(self, small_disk: Path) -> None:
        assert reserve(small_disk / "probe", MB) == 0

    def test_a_disk_without_says_so(self, small_disk: Path) -> None:
        assert reserve(small_disk / "probe", 3 * MB) == errno.ENOSPC

    def test_more_than_32_bits_are_asked_for_in_full(self, small_disk: Path) -> None:
        assert reserve(small_disk / "probe", (1 << 32) + 4096) == errno.ENOSPC

    def test_a_file_system_that_has_no_such_call_is_believed(self) -> None:
        if not Path("/proc/self/comm").is_file():
            pytest.skip("needs procfs, which cannot reserve anything")
        assert reserve(Path("/proc/self/comm"), MB) == 0
