"""A run whose events are damaged resumes from its checkpoint to the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bits import same
from damaged_events import DAMAGED_LINES, FLIPS, be_folder, flip, insert
from shares import share
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.stopping import StopRequest
from stoker.train.attempt.end import FINISHED, INTERRUPTED
from stoker.train.attempt.session import train
from tiny_runs import FLAGS, one_thread_alone, tiny_set  # noqa: F401

RECIPE = resolve(flags={**FLAGS, "epochs": 1})
Change = Callable[[Path], None]


def edited(change: Callable[[bytes], bytes]) -> Change:
    return lambda path: void(path.write_bytes(change(path.read_bytes())))


def void(_: object) -> None:
    return None


CHANGES: dict[str, Change] = {
    **{name: edited(insert(text)) for name, text in DAMAGED_LINES.items()},
    "empty": edited(lambda whole: b""),
    "cut": edited(lambda whole: whole[: len(whole) // 2]),
    "the first line": edited(lambda whole: b"x" + whole),
    "the last line": edited(lambda whole: whole[:-9] + b"\xff" + whole[-8:]),
    "a folder": be_folder,
    "nothing": lambda path: path.unlink(),
    **{f"flip {number}": edited(lambda whole, n=number: flip(whole, n)) for number in FLIPS},
}
PARTS = 150


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_set(tmp_path_factory.mktemp("set"))


@pytest.fixture(scope="module")
def stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in its second step."""
    path, stop = tmp_path_factory.mktemp("runs") / "run", StopRequest()

    def listen(event: Event) -> None:
        if event["kind"] == "attempt":
            stop.request("the test")

    assert train(data, RECIPE, path, (listen,), stop) == INTERRUPTED
    return path


def checkpoint_of(path: Path) -> list[object]:
    newest, torn = Checkpoints(path).newest()
    assert newest is not None and not torn
    places = [newest.facts[name] for name in ("position", "step", "best")]
    return [newest.weights, newest.ema, newest.state, places]


def resume(stopped: Path, data: Path, path: Path, change: Change) -> tuple[list[object], list[str]]:
    """The last checkpoint, and the notes of the attempt, after a change of the events."""
    shutil.copytree(stopped, path)
    change(Run(path).events_path(1, 0))
    assert train(data, RECIPE, path) == FINISHED
    start = Run(path).start_of(2)
    assert start is not None
    return checkpoint_of(path), [note for note in start["warnings"] if "damaged" in note]


@pytest.mark.exact
def test_damaged_events_resume_to_the_same_bits(
    stopped: Path, data: Path, tmp_path: Path, whole: bool
) -> None:
    expected, notes = resume(stopped, data, tmp_path / "whole", lambda path: None)
    assert notes == []
    names = [*share("damaged events", list(CHANGES), PARTS, whole=whole), *list(DAMAGED_LINES)[:2]]
    for name in names:
        path = tmp_path / "run"
        bits, notes = resume(stopped, data, path, CHANGES[name])
        assert same(bits, expected), name
        assert len(notes) == 1 if name in DAMAGED_LINES else len(notes) <= 1, name
        shutil.rmtree(path)
