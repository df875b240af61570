"""Answers about learning, data and checkpoints, from runs with known numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compat.kept import FINISHED
from golden import check_golden
from made_runs import RunMaker
from priced_runs import end, new_run, start, write
from report_pages import NOW, change_record
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.run.directory import Run
from stoker.show.report.elements import PageTable
from stoker.show.report.facts import RunFacts, facts_of
from stoker.show.report.page import QUESTIONS
from stoker.show.report.questions import (
    Question,
    checkpoint_parts,
    checkpoint_size,
    fully_trained,
    learning_rate,
    overfitting,
    set_size,
)


def facts(run: Run) -> RunFacts:
    return facts_of(run, now=NOW)


def step(number: int, hits: float = 5.0, loss: float = 20.0, **more: Any) -> dict[str, Any]:
    """A step of ten images of one second."""
    return {
        "kind": "step",
        "step": number,
        "position": 10 * number,
        "epoch": number / 10,
        "batch": 10,
        "images": 10,
        "sums": [loss, hits, hits],
        "parts": {"forward": 0.6, "backward": 0.4},
        **more,
    }


def evaluation(number: int, top1: int, loss: float | None = 1.0) -> dict[str, Any]:
    known = {} if loss is None else {"loss": loss}
    event = {"kind": "evaluation", "position": 10 * number, "epoch": number / 10, "images": 1000}
    return {**event, "top1": top1, "top5": 1000, **known}


def trained(
    folder: Path, shares: list[int], *, steps: int = 30, hits: float = 5.0,
    losses: list[float] | None = None, done: int = 30,
) -> RunFacts:  # fmt: skip
    """A run of 30 steps, evaluated at equal distances with so many right answers of 1000."""
    run = new_run(folder)
    every = done // max(len(shares), 1)
    events = [start(steps=steps, samples=100, epochs=3)]
    for number in range(done):
        events.append(step(number, hits))
        place = (number + 1) // every - 1 if shares and (number + 1) % every == 0 else -1
        if 0 <= place < len(shares):
            loss = losses[place] if losses else 1.0
            events.append(evaluation(number + 1, shares[place], loss))
    write(run, 1, 0, [*events, end(position=10 * done, step=done)])
    return facts(run)


def test_a_curve_that_is_flat_at_the_end_is_trained(tmp_path: Path) -> None:
    flat = [300, 500, 600, 650, 680, 700, 701, 699, 700, 701]
    answer = fully_trained(trained(tmp_path, flat)).answer
    assert answer.startswith("Yes") and "points over the last third" in answer


def test_a_curve_that_still_rises_is_not(tmp_path: Path) -> None:
    rising = [100 + 60 * number for number in range(10)]
    question = fully_trained(trained(tmp_path, rising))
    assert question.answer.startswith("Not yet") and "rose by 18.0 points" in question.answer
    assert "complete" in str(question.evidence[1])


def test_a_curve_that_falls_is_past_its_best(tmp_path: Path) -> None:
    falling = [300, 500, 800, 800, 790, 780, 760, 700, 650, 600]
    assert fully_trained(trained(tmp_path, falling)).answer.startswith("It is past its best")


@pytest.mark.parametrize(
    ("shares", "opening"),
    [
        ([400, 800, 900, *[1000] * 7], "Yes, as far as its evaluation can show: all 1,000 images"),
        ([900, 940, 950, 960, 970, 980, 985, 990, 995, 1000], "Yes, as far as its evaluation"),
        ([1000], "Yes, as far as its evaluation can show"),
        ([400, 800, *[999] * 8], "Yes, as far as this recipe goes: the accuracy moved by only 0.0"),
        ([990, 995, *[999] * 7, 1000], "Yes, as far as its evaluation can show"),
        ([1000] * 9 + [1200], "Yes, as far as its evaluation can show"),
        ([0] * 10, "No: 0.0% is no more than guessing"),
        ([502, 499, *[500] * 8], "No: 50.0% is no more than guessing"),
        ([100, *[500 + 30 * n for n in range(9)]], "Not yet: the accuracy still rose"),
    ],
)
def test_a_curve_at_the_ceiling_or_flat(tmp_path: Path, shares: list[int], opening: str) -> None:
    """A curve without noise of its own once rose, or fell, by 0.0 points."""
    made = trained(tmp_path, shares)
    change_record(made.run, classes=["a", "b"])
    question = fully_trained(facts(made.run))
    assert question.answer.startswith(opening)
    assert "-0.0 points" not in str(question)


def test_a_schedule_that_is_cut_short_is_said(tmp_path: Path) -> None:
    flat = [700] * 10
    question = fully_trained(trained(tmp_path, flat, steps=60))
    assert question.answer.startswith("Not to the end of its schedule")
    assert any("step 30 of 60 (50%)" in str(part) for part in question.evidence)


def test_missing_evidence_is_named(tmp_path: Path) -> None:
    few = fully_trained(trained(tmp_path / "few", [300, 500]))
    assert few.answer.startswith("Perhaps") and "Missing" in str(few.evidence[0])
    none = fully_trained(trained(tmp_path / "none", []))
    assert "no evaluation" in none.answer


def test_a_target_is_compared_with_the_best(tmp_path: Path) -> None:
    answer = trained(tmp_path, [300, 500, 600])
    for target, words in ((0.55, "reached at epoch 3.00"), (0.9, "was not reached")):
        change_record(answer.run, values={"model": "m", "target": target})
        texts = [str(part) for part in fully_trained(facts(answer.run)).evidence]
        assert any(words in text for text in texts)


@pytest.mark.parametrize(
    ("hits", "shares", "losses", "opening"),
    [
        (4.0, [300, 400, 500], [1.0, 0.9, 0.8], "No: training accuracy 40.0%"),
        (9.5, [600, 620, 625], [1.0, 0.9, 0.9], "There are signs of it"),
        (9.5, [600, 620, 610], [0.9, 1.0, 1.3], "Yes: the evaluation loss rose to 1.44"),
        (4.0, [350], [1.0], "No sign of it, but 1 evaluation"),
    ],
)
def test_overfitting_is_a_gap_that_grows_or_a_loss_that_rises(
    tmp_path: Path, hits: float, shares: list[int], losses: list[float], opening: str
) -> None:
    question = overfitting(trained(tmp_path, shares, hits=hits, losses=losses))
    assert question.answer.startswith(opening)
    assert any("under augmentation" in str(part) for part in question.evidence)


def test_overfitting_needs_evaluations(tmp_path: Path) -> None:
    assert "no evaluations to compare" in overfitting(trained(tmp_path, [])).answer


def test_the_learning_rate_and_its_reasons(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=200).attempt(0, 200).run
    values = {"model": "m", "scheduler": "cosine", "lr": 0.0, "lr_base": 0.4, "lr_base_size": 256}
    change_record(run, values={**values, "warmup_epochs": 2.0})
    question = learning_rate(facts(run))
    assert "highest at 0.4 (epoch 0.00)" in question.answer
    assert "after a warm-up of 2 epochs, by the schedule 'cosine'" in question.answer
    texts = " ".join(str(part) for part in question.evidence)
    for words in (
        "cosine schedule",
        "Warm-up",
        "lr_base = 0.4 is meant for 256",
        "global batch 256",
    ):
        assert words in texts


def test_the_set_is_measured_where_it_is_there(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", classes=2, images=6, val=2)
    dataset = Dataset(pack(folder, tmp_path / "set"))
    run = RunMaker(tmp_path / "run", steps=30).attempt(0, 30).run
    gone = set_size(facts(run))
    assert "By the record" in gone.answer and "no longer at" in str(gone.evidence[0])
    change_record(run, data=str(dataset.path), fingerprint="other")
    assert "other images" in str(set_size(facts(run)).evidence[0])
    change_record(run, fingerprint=dataset.fingerprint, classes=dataset.classes)
    assert set_size(facts(run)).answer.startswith("16 images of 2 classes, ")


def test_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    kept = facts(Run(FINISHED.path))
    parts, sizes = checkpoint_parts(kept), checkpoint_size(kept)
    (table,) = [part for part in sizes.evidence if isinstance(part, PageTable)]
    names = [row[0] for row in table.rows]
    assert {"weights.safetensors", "state.pt", "manifest.json", "COMMITTED"} <= set(names)
    assert all(str(name) in parts.answer for name in names)
    assert "are the weights of the model" in sizes.answer
    made = facts(RunMaker(tmp_path / "run", steps=50).attempt(0, 50).run)
    assert "94.4 MB, by the record" in checkpoint_size(made).answer
    assert "None is left" in checkpoint_parts(made).answer
    empty = facts(new_run(tmp_path / "empty"))
    assert checkpoint_size(empty).answer == "No checkpoint is on record."


def lines(question: Question) -> list[str]:
    """A question as text."""
    parts = []
    for part in question.evidence:
        if isinstance(part, PageTable):
            parts += [f"  {part.caption}: {' | '.join(part.columns)}"]
            parts += [f"    {' | '.join(map(str, row))}" for row in part.rows]
        else:
            parts.append(f"  {part if isinstance(part, str) else f'({part.title})'}")
    return [question.title, question.answer, *parts, ""]


def test_golden_answers_of_a_run(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", steps=2000, ranks=2, gpus=True)
    known = facts(maker.attempt(0, 1200, None).attempt(1000, 2000).run)
    check_golden("report_answers", [line for ask in QUESTIONS for line in lines(ask(known))])
