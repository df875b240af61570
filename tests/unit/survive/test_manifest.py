"""A manifest with a true marker and wrong contents: it is passed over, with a reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from golden import check_golden
from stoker.errors import NewerFormat, StokerError
from stoker.survive.checkpoint import Snapshot, read_checkpoint
from stoker.survive.checkpoints import Checkpoints

pytestmark = pytest.mark.exact
Manifest = dict[str, Any]


def save(run: Path, step: int) -> Path:
    facts = {"step": step, "position": 64 * step, "evaluated": 0, "best": step / 100}
    state = {"optimizer": {}, "scaler": {}}
    checkpoints = Checkpoints(run, keep=9)
    checkpoints.save(Snapshot({"weight": torch.full((3,), float(step))}, {}, state, facts))
    checkpoints.wait()
    return checkpoints.folder / f"{step:09d}"


def commit(folder: Path, text: bytes) -> None:
    """Write a manifest, and the marker that belongs to it."""
    (folder / "manifest.json").write_bytes(text)
    (folder / "COMMITTED").write_text(hashlib.sha256(text).hexdigest())


def change(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    commit(folder, json.dumps({**manifest, **changes}).encode())


def files(**changes: Any) -> Callable[[Path], None]:
    """Changes the facts of weights.safetensors."""

    def act(folder: Path) -> None:
        listed = json.loads((folder / "manifest.json").read_bytes())["files"]
        listed["weights.safetensors"] |= changes
        change(folder, files=listed)

    return act


def another_file(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        listed = json.loads((folder / "manifest.json").read_bytes())["files"]
        change(folder, files={**listed, name: {"bytes": 9, "sha256": "0" * 64}})

    return act


def without(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        listed = json.loads((folder / "manifest.json").read_bytes())["files"]
        del listed[name]
        change(folder, files=listed)

    return act


def replaced(name: str, data: bytes) -> Callable[[Path], None]:
    """Other contents under a hash that is right."""

    def act(folder: Path) -> None:
        (folder / name).write_bytes(data)
        listed = json.loads((folder / "manifest.json").read_bytes())["files"]
        listed[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        change(folder, files=listed)

    return act


WRONG: dict[str, Callable[[Path], None]] = {
    "an empty list of files": lambda folder: change(folder, files={}),
    "no list of files": lambda folder: change(folder, files=None),
    "a list of names": lambda folder: change(folder, files=["weights.safetensors", "state.pt"]),
    "files without facts": files(bytes=None),
    "a negative size": files(bytes=-1),
    "a size that is a word": files(bytes="many"),
    "a hash that is a number": files(sha256=7),
    "a file above the folder": another_file("../../secret"),
    "an absolute file": another_file("/etc/passwd"),
    "an escape sequence": another_file("\x1b[2Jx"),
    "no weights": without("weights.safetensors"),
    "no state": without("state.pt"),
    "weights that are none": replaced("weights.safetensors", b"rubbish"),
    "a state that is none": replaced("state.pt", b"rubbish"),
    "a negative step": lambda folder: change(folder, step=-1),
    "another step": lambda folder: change(folder, step=7),
    "a step that is a word": lambda folder: change(folder, step="20"),
    "a position that is a word": lambda folder: change(folder, position="1280"),
    "a position that is a fraction": lambda folder: change(folder, position=1280.5),
    "a negative position": lambda folder: change(folder, position=-64),
    "a position that is true": lambda folder: change(folder, position=True),
    "a negative evaluation": lambda folder: change(folder, evaluated=-1),
    "a best that is a list": lambda folder: change(folder, best=[1]),
    "a best that is no number": lambda folder: change(folder, best=float("nan")),
    "a list": lambda folder: commit(folder, b"[]"),
    "no JSON": lambda folder: commit(folder, b"{"),
    "very deep JSON": lambda folder: commit(folder, b"[" * 200_000),
    "an unknown format": lambda folder: change(folder, format="new"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 10 and 20."""
    save(tmp_path, 10)
    save(tmp_path, 20)
    return tmp_path


@pytest.mark.parametrize("wrong", WRONG)
def test_it_is_passed_over_and_named(run: Path, wrong: str) -> None:
    WRONG[wrong](run / "checkpoints" / "000000020")
    checkpoints = Checkpoints(run)
    checkpoint, torn = checkpoints.recover()
    assert checkpoint is not None and checkpoint.name == "000000010"
    assert torn == ["000000020"]
    (reason,) = checkpoints.reasons.values()
    assert "\n" not in reason and reason.isprintable()
    assert (run / "checkpoints" / "000000020.torn").is_dir()


def test_reasons_golden(run: Path) -> None:
    lines = []
    for number, spoil in enumerate(WRONG.values()):
        folder = save(run, 30 + number)
        spoil(folder)
        with pytest.raises(StokerError) as refusal:
            read_checkpoint(folder)
        reason = (
            str(refusal.value).replace(str(folder), "CHECKPOINT").replace(str(30 + number), "S")
        )
        if "holds no state" not in reason:  # those go on in the words of torch
            lines.append(reason)
    check_golden("survive_manifests", lines)


def test_a_lack_of_memory_does_not_make_a_checkpoint_torn(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*arguments: object, **more: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(torch, "load", no_memory)
    with pytest.raises(MemoryError):
        Checkpoints(run).recover()
    assert (run / "checkpoints" / "000000020").is_dir()


def test_what_does_not_fit_the_run_is_passed_over(run: Path) -> None:
    checkpoints = Checkpoints(run, misfit=lambda s: "no" if s.facts["step"] == 20 else "")
    checkpoint, torn = checkpoints.recover()
    assert checkpoint is not None and (checkpoint.name, torn) == ("000000010", ["000000020"])
    assert checkpoints.reasons == {"000000020": "no"}


def test_bad_numbers_around_a_newer_format_leave_it_alone(run: Path) -> None:
    save(run, 30)
    change(run / "checkpoints" / "000000020", format=2)
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    with pytest.raises(NewerFormat, match="000000020 has format 2"):
        Checkpoints(run).set_aside_after(15)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before
