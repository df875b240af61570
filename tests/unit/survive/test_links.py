"""Links in a run directory: nothing outside is removed or changed, and saves succeed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stoker.errors import BadRequest
from stoker.run.directory import Run
from stoker.survive.checkpoint import Snapshot
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.storage import require_space

pytestmark = pytest.mark.exact


def save(run: Path, step: int, keep: int = 1) -> Checkpoints:
    facts = {"step": step, "position": 64 * step, "best": 0.5}
    checkpoints = Checkpoints(run, keep)
    checkpoints.save(Snapshot({"weight": torch.full((3,), float(step))}, {}, {"a": {}}, facts))
    checkpoints.wait()
    return checkpoints


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 10)
    return tmp_path / "run"


@pytest.fixture
def outside(run: Path) -> Path:
    """A place that no run may change, with a checkpoint and a file."""
    outside = run.parent / "outside"
    shutil.copytree(run / "checkpoints" / "000000010", outside / "precious")
    (outside / "file").write_text("precious")
    return outside


def linked(folder: Path, target: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(target)


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "a checkpoint": lambda folder, outside: linked(folder / "000000010", outside / "precious"),
    "a torn one": lambda folder, outside: (folder / "000000010.torn").symlink_to(outside),
    "a diverged one": lambda folder, outside: (folder / "000000009.diverged").symlink_to(outside),
    "the next one": lambda folder, outside: (folder / "000000020").symlink_to(outside),
    "the next one, to nothing": lambda folder, _: (folder / "000000020").symlink_to("nothing"),
    "an old one, to a file": lambda folder, outside: (folder / "000000005").symlink_to(
        outside / "file"
    ),
    "a weights file": lambda folder, outside: relink(folder, "weights.safetensors", outside),
    "a marker": lambda folder, outside: relink(folder, "COMMITTED", outside),
}


def relink(folder: Path, name: str, outside: Path) -> None:
    (folder / "000000010" / name).unlink()
    (folder / "000000010" / name).symlink_to(outside / "precious" / name)


@pytest.mark.parametrize("link", LINKS)
def test_a_save_succeeds_and_nothing_outside_goes(run: Path, outside: Path, link: str) -> None:
    before = contents(outside)
    LINKS[link](run / "checkpoints", outside)
    Checkpoints(run).recover()
    for step in (20, 30):
        checkpoints = save(run, step)
    assert contents(outside) == before
    newest, torn = checkpoints.newest()
    assert newest is not None and (newest.facts["step"], torn) == (30, [])
    assert checkpoints.names() == ["000000030"]


@pytest.mark.parametrize("rename", [True, False])
def test_a_torn_link_is_set_aside_alone(
    run: Path, outside: Path, rename: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (outside / "precious" / "state.pt").write_bytes(b"damaged")
    before = contents(outside)
    (run / "checkpoints" / "000000020").symlink_to(outside / "precious")
    if not rename:

        def unable(*_: object) -> None:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(Path, "rename", unable)
    newest, torn = Checkpoints(run).recover()
    assert newest is not None and (newest.name, torn) == ("000000010", ["000000020"])
    assert contents(outside) == before


def test_in_a_linked_folder_only_what_was_saved_here_is_removed(run: Path) -> None:
    elsewhere = run.parent / "disk"
    (run / "checkpoints").rename(elsewhere)
    (elsewhere / "000000030").mkdir()
    (elsewhere / "000000030" / "mine").write_text("precious")
    (run / "checkpoints").symlink_to(elsewhere)
    before = contents(elsewhere)
    checkpoints = Checkpoints(run, keep=1)
    for step in (20, 30, 40):
        weights, facts = {"weight": torch.zeros(3)}, {"step": step, "position": 64, "best": 0.0}
        checkpoints.save(Snapshot(weights, {}, {"a": {}}, facts))
        checkpoints.wait()
    assert before.items() <= contents(elsewhere).items()
    assert checkpoints.names() == ["000000040", "000000030", "000000010"]


def test_a_run_that_is_a_link_is_pruned_as_usual(run: Path) -> None:
    link = run.parent / "link"
    link.symlink_to(run)
    for step in (20, 30):
        save(link, step)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000000030"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_lock_that_is_a_link_is_refused(run: Path, outside: Path, exists: bool) -> None:
    (run / "lock").symlink_to(outside / ("file" if exists else "new"))
    before = contents(outside)
    with pytest.raises(BadRequest, match="lock"):
        Run(run).lock(patience_s=0)
    assert contents(outside) == before


def test_reserving_space_does_not_follow_a_link(run: Path, outside: Path) -> None:
    (run / "checkpoints" / ".room").symlink_to(outside / "file")
    require_space(run / "checkpoints", 4096)
    assert contents(outside)["file"] == b"precious"
