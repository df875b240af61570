"""A run keeps its last evaluation, whatever happens around it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from golden import check_golden
from stoker.commit import temporary
from stoker.data.dataset import Dataset
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.run.evaluation import NAME
from stoker.train.attempt.session import train
from stoker.train.evaluate import Accuracy, Answers
from stoker.train.records import kept_evaluation
from stoker.train.records.kept_evaluation import EvaluationKeeper
from tiny_runs import FLAGS, one_thread_alone, tiny_set

__all__ = ["one_thread_alone"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_set(tmp_path_factory.mktemp("kept"))


def trained(data: Path, path: Path, **flags: Any) -> Run:
    assert train(data, resolve(None, FLAGS | {"epochs": 2} | flags), path) == "finished"
    return Run(path)


def test_it_is_that_of_the_last_event(data: Path, tmp_path: Path) -> None:
    run = trained(data, tmp_path / "run")
    kept, event = run.evaluation(), run.merged("evaluation")[-1]
    assert kept is not None
    report = kept.report
    assert (kept.step, kept.position) == (event["step"], event["position"])
    same = (event["images"], event["top1"], event["top5"], event["loss"])
    assert (report.images, report.top1, report.top5, report.loss) == same
    assert (report.split, report.classes) == ("val", Dataset(data).classes)
    assert [images for images, _, _ in report.per_class] == [5, 5, 5]
    assert len(report.worst) == 15
    split = Dataset(data).split("val")
    for row in report.worst:
        assert split.labels[row.sample] == row.label
        assert row.path.startswith(f"val/{report.classes[row.label]}/")
    assert json.loads((run.path / NAME).read_text())["checkpoint"] == f"{kept.step:09d}"


def test_a_resumed_run_writes_it_again_to_the_byte(data: Path, tmp_path: Path) -> None:
    whole, first = trained(data, tmp_path / "whole"), trained(data, tmp_path / "run", epochs=1)
    before = first.evaluation()
    (first.path / NAME).write_text("{torn")
    resolved = resolve(None, FLAGS | {"epochs": 2})
    assert train(data, resolved, first.path, allowed=["epochs"]) == "finished"
    kept = first.evaluation()
    assert before is not None and kept is not None
    assert before.step < kept.step
    again = trained(data, tmp_path / "again")
    assert (again.path / NAME).read_bytes() == (whole.path / NAME).read_bytes()


def failing(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_write_is_a_note(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept_evaluation, "write_bytes", failing)
    run = trained(data, Path("run"), epochs=1)
    assert run.evaluation() is None
    notes = [event["words"] for event in run.events() if event["kind"] == "note"]
    check_golden("train_kept_evaluation", notes)


def answers(images: int) -> Answers:
    import numpy as np

    zeros = np.zeros(images, np.float32)
    return Answers(zeros.astype(np.int32), zeros, zeros, zeros.astype(np.int32))


def test_a_failed_write_leaves_the_old_one_and_no_draft(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    dataset = Dataset(data)
    keep = EvaluationKeeper(tmp_path, dataset.split("val"), dataset.classes, notes.append)
    (tmp_path / f".{NAME}.1.tmp").write_text("of a process that was killed")
    keep(1, 16, Accuracy(15, 15, 15, 0.0), answers(15))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    before = (tmp_path / NAME).read_bytes()

    def torn(path: Path, content: bytes) -> None:
        temporary(path).write_bytes(content[:9])
        failing()

    monkeypatch.setattr(kept_evaluation, "write_bytes", torn)
    keep(2, 32, Accuracy(15, 0, 0, 1.0), answers(15))
    assert (tmp_path / NAME).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert len(notes) == 1


def test_an_index_that_is_gone_is_a_note(data: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    dataset = Dataset(data)
    split = dataset.split("val")
    split.rows.file = tmp_path / "gone"
    keep = EvaluationKeeper(tmp_path, split, dataset.classes, notes.append)
    keep(1, 16, Accuracy(15, 15, 15, 0.0), answers(15))
    assert len(notes) == 1
    assert not (tmp_path / NAME).exists()


def test_a_set_without_evaluation_keeps_none(data: Path, tmp_path: Path) -> None:
    from samples import image_folder
    from stoker.data.images.encode import Storage
    from stoker.data.packing.pack import pack

    photos = image_folder(tmp_path / "photos", size=(8, 8), suffix="png", images=20)
    alone = pack(photos, tmp_path / "set", storage=Storage(codec="raw"), val_share=0, workers=1)
    assert trained(alone, tmp_path / "run", epochs=1).evaluation() is None
