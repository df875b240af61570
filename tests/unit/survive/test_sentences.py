"""Every sentence of the survive modules, as users read it."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from golden import check_golden
from stoker.errors import Interrupted, StokerError
from stoker.recipe.recipe import Recipe
from stoker.survive import storage
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import MARKER
from stoker.survive.remedies import EXPLODING, MEMORY, NOT_FINITE, Remedies, Trouble
from stoker.survive.save_interval import derive
from stoker.survive.spot import Notice, NoticeWatch, Service
from stoker.survive.stopping import UNCHANGED, StopRequest, stops_at_once
from stoker.survive.watchdog import Standing, describe_stall


def snapshot() -> Snapshot:
    facts = {"step": 3, "position": 192, "best": 0.5}
    return Snapshot({"kernel": torch.zeros(10)}, {}, {"optimizer": {}}, facts)


def test_checkpoint_sentences_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []

    def note(error: StokerError) -> None:
        lines.append(f"{type(error).__name__}: {error}".replace(f"{tmp_path}/", ""))

    folder = tmp_path / "checkpoints" / "000000003"
    write_checkpoint(folder, snapshot())
    weights = bytearray((folder / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(weights)
    with pytest.raises(StokerError) as refusal:
        read_checkpoint(folder)
    note(refusal.value)
    (folder / MARKER).unlink()
    with pytest.raises(StokerError) as refusal:
        read_checkpoint(folder)
    note(refusal.value)

    def broken(path: Path) -> Snapshot:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("stoker.survive.checkpoints.read_checkpoint", broken)
        with pytest.raises(StokerError) as refusal:
            Checkpoints(tmp_path).newest()
        note(refusal.value)
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "checkpoints").write_text("in the way")
    checkpoints = Checkpoints(tmp_path / "file")
    checkpoints.save(snapshot())
    with pytest.raises(StokerError) as refusal:
        checkpoints.wait()
    note(refusal.value)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=9_000_000))
    for number in (errno.ENOSPC, errno.EDQUOT):
        monkeypatch.setattr(storage, "reserve", lambda path, size, number=number: number)
        with pytest.raises(StokerError) as refusal:
            storage.require_space(tmp_path / "checkpoints", 3_000_000)
        note(refusal.value)
        with pytest.raises(StokerError) as refusal:
            storage.require_space(tmp_path / "checkpoints", 3_000_000, "the next checkpoint")
        note(refusal.value)
    lines.append(derive(0.3, 4.0).text())
    check_golden("survive_checkpoints", lines)


def test_remedy_sentences_golden(tmp_path: Path) -> None:
    lines = []
    remedies = Remedies(tmp_path)
    for kind, detail in ((NOT_FINITE, "the gradient"), (EXPLODING, "loss 9.1"), (MEMORY, "rank 1")):
        trouble = Trouble(kind, 12, detail)
        at = {"position": 768, "resume_position": 640}
        lines.append(remedies.choose(trouble, Recipe(), **at, micro_batch=64).text())
        for recipe in (Recipe(on_divergence="stop"), Recipe(divergence_retries=0)):
            with pytest.raises(StokerError) as refusal:
                remedies.choose(trouble, recipe, **at, micro_batch=2)
            lines.append(str(refusal.value).replace(f"{tmp_path}/", ""))
    (tmp_path / "remedies.json").write_text("[3]")
    with pytest.raises(StokerError) as refusal:
        Remedies(tmp_path)
    lines.append(str(refusal.value).replace(f"{tmp_path}/", "").partition(":")[0])
    check_golden("survive_remedies", lines)


def test_stop_sentences_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = StopRequest()
    lines = [Notice("aws", 1_800_000_000.0).text()]
    stop.request("SIGTERM")
    with pytest.raises(Interrupted) as refusal, stops_at_once(stop, "verifying", UNCHANGED):
        pass
    lines.append(str(refusal.value))
    with pytest.raises(StokerError) as wrong:
        Service("file:///etc/passwd")
    lines.append(str(wrong.value))
    watch = NoticeWatch("gcp", Service("http://127.0.0.1"), StopRequest(), failures=2)
    monkeypatch.setattr(watch, "look", lambda: setattr(watch, "failures", 3) or watch.close())
    watch._watch()
    check_golden("survive_stops", lines + watch.stop.notes)


def test_stall_sentences_golden() -> None:
    def standing(rank: int, phase: str, place: int) -> Standing:
        return Standing(rank, f"host{rank}", 7, phase, place, 61.0)

    data, forward = standing(0, "data", 0), standing(1, "forward", 2)
    check_golden(
        "survive_stalls",
        [
            describe_stall([data], 1),
            describe_stall([data, forward], 2),
            describe_stall([forward, standing(0, "forward", 2)], 2),
            describe_stall([data], 3),
        ],
    )
