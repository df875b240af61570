"""Folders that do not count are set aside under a name that says so, and go in their time."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import MARKER


def save(run: Path, step: int, *, keep: int = 9, best: bool = False) -> Checkpoints:
    weights = {"weight": torch.full((3,), float(step))}
    facts = {"step": step, "position": 64 * step, "best": step / 100}
    checkpoints = Checkpoints(run, keep)
    checkpoints.save(Snapshot(weights, {}, {"optimizer": {}}, facts), best=best)
    checkpoints.wait()
    return checkpoints


def tear(run: Path, name: str) -> None:
    (run / "checkpoints" / name / MARKER).unlink()


def folders(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def step_of(found: Snapshot | None) -> int | None:
    return None if found is None else int(found.facts["step"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 10, 20 and 30."""
    for step in (10, 20, 30):
        save(tmp_path, step)
    return tmp_path


@pytest.fixture
def no_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(Path, "rename", unable)


class TestTorn:
    def test_it_is_named_and_set_aside(self, run: Path) -> None:
        tear(run, "000000030")
        found, torn = Checkpoints(run).recover()
        assert (step_of(found), torn) == (20, ["000000030"])
        assert folders(run) == {"000000010", "000000020", "000000030.torn"}
        assert Checkpoints(run).pointer("last") == "000000020"

    def test_what_is_in_it_is_kept_for_whoever_wants_to_know(self, run: Path) -> None:
        tear(run, "000000030")
        before = (run / "checkpoints" / "000000030" / "weights.safetensors").read_bytes()
        Checkpoints(run).recover()
        after = (run / "checkpoints" / "000000030.torn" / "weights.safetensors").read_bytes()
        assert after == before

    def test_it_is_not_found_again(self, run: Path) -> None:
        tear(run, "000000030")
        Checkpoints(run).recover()
        found, torn = Checkpoints(run).recover()
        assert (step_of(found), torn) == (20, [])
        assert Checkpoints(run).names() == ["000000020", "000000010"]

    def test_several_are_all_set_aside(self, run: Path) -> None:
        for name in ("000000010", "000000020", "000000030"):
            tear(run, name)
        assert Checkpoints(run).recover() == (None, ["000000030", "000000020", "000000010"])
        assert folders(run) == {"000000010.torn", "000000020.torn", "000000030.torn"}
        assert Checkpoints(run).recover() == (None, [])

    def test_looking_alone_sets_nothing_aside(self, run: Path) -> None:
        tear(run, "000000030")
        for _ in range(2):
            assert Checkpoints(run).newest()[1] == ["000000030"]

    def test_the_same_step_torn_again_takes_the_place_of_the_first(self, run: Path) -> None:
        tear(run, "000000030")
        Checkpoints(run).recover()
        save(run, 25)
        (run / "checkpoints" / "000000030").mkdir()
        (run / "checkpoints" / "000000030" / "second").touch()
        found, torn = Checkpoints(run).recover()
        assert (step_of(found), torn) == (25, ["000000030"])
        assert [path.name for path in (run / "checkpoints" / "000000030.torn").iterdir()] == [
            "second"
        ]

    def test_a_second_save_of_a_step_is_set_aside_by_its_own_name(self, run: Path) -> None:
        save(run, 30)
        tear(run, "000000030-2")
        found, torn = Checkpoints(run).recover()
        assert (step_of(found), torn) == (30, ["000000030-2"])
        assert "000000030-2.torn" in folders(run)

    @pytest.mark.parametrize(("step", "kept"), [(25, True), (30, False), (31, False)])
    def test_it_goes_when_the_run_has_saved_beyond_it(
        self, run: Path, step: int, kept: bool
    ) -> None:
        tear(run, "000000030")
        Checkpoints(run).recover()
        save(run, step)
        assert ("000000030.torn" in folders(run)) == kept
        assert step_of(Checkpoints(run).newest()[0]) == step

    def test_it_does_not_count_as_one_of_those_kept(self, run: Path) -> None:
        tear(run, "000000030")
        Checkpoints(run).recover()
        save(run, 25, keep=2)
        assert folders(run) == {"000000025", "000000020", "000000030.torn"}

    def test_what_others_put_there_stays(self, run: Path) -> None:
        for name in ("notes", "mine.torn", "000000010.bak", "10.torn"):
            (run / "checkpoints" / name).mkdir()
        save(run, 40, keep=1)
        assert folders(run) == {"000000040", "notes", "mine.torn", "000000010.bak", "10.torn"}


@pytest.mark.usefixtures("no_rename")
class TestWithoutRename:
    def test_a_torn_one_stays_and_is_passed_over(self, run: Path) -> None:
        tear(run, "000000030")
        for _ in range(2):
            found, torn = Checkpoints(run).recover()
            assert (step_of(found), torn) == (20, ["000000030"])
        assert "000000030" in folders(run)

    def test_the_next_saves_work(self, run: Path) -> None:
        tear(run, "000000030")
        Checkpoints(run).recover()
        for step in (25, 30, 35):
            save(run, step, keep=2)
            assert step_of(Checkpoints(run).newest()[0]) == step
        assert folders(run) == {"000000035", "000000030"}


class TestDiverged:
    @pytest.mark.parametrize(
        ("step", "left", "aside"),
        [
            (30, {"000000010", "000000020", "000000030"}, set()),
            (29, {"000000010", "000000020"}, {"000000030.diverged"}),
            (20, {"000000010", "000000020"}, {"000000030.diverged"}),
            (15, {"000000010"}, {"000000020.diverged", "000000030.diverged"}),
            (0, set(), {"000000010.diverged", "000000020.diverged", "000000030.diverged"}),
        ],
    )
    def test_what_was_saved_after_a_step_is_set_aside(
        self, run: Path, step: int, left: set[str], aside: set[str]
    ) -> None:
        Checkpoints(run).set_aside_after(step)
        assert folders(run) == left | aside
        found, torn = Checkpoints(run).newest()
        assert torn == []
        assert (found.name if found else None) == max(left, default=None)

    def test_it_goes_when_the_run_has_saved_beyond_it(self, run: Path) -> None:
        Checkpoints(run).set_aside_after(15)
        save(run, 25)
        assert folders(run) == {"000000010", "000000025", "000000030.diverged"}
        save(run, 30)
        assert folders(run) == {"000000010", "000000025", "000000030"}

    def test_last_is_mended(self, run: Path) -> None:
        Checkpoints(run).set_aside_after(15)
        Checkpoints(run).recover()
        assert Checkpoints(run).pointer("last") == "000000010"

    def test_a_run_without_checkpoints_has_nothing_to_set_aside(self, tmp_path: Path) -> None:
        Checkpoints(tmp_path).set_aside_after(0)
        assert list(tmp_path.iterdir()) == []


def test_a_save_tells_how_long_it_kept_a_core_busy(tmp_path: Path) -> None:
    (saved,) = save(tmp_path, 3).finished
    assert 0 < saved.busy_s <= saved.seconds + 0.05
