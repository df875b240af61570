"""Runs that start from weights, thaw and end early: what they record, and how they go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bits import same
from stoker.commit import sha256_file
from stoker.errors import BadRequest, StokerError
from stoker.recipe.resolve import Resolved, resolve
from stoker.run.directory import Run
from stoker.show.explain import explain
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.stopping import StopRequest
from stoker.train import loaders
from stoker.train.attempt.end import FINISHED, INTERRUPTED
from stoker.train.attempt.launch import check_weights, early_end_of
from stoker.train.attempt.session import train
from stoker.train.model.build import build_model
from stoker.train.model.start import FIRST_RULES
from tiny_runs import FLAGS, one_thread_alone, tiny_set  # noqa: F401

TUNED: dict[str, Any] = {
    **{"freeze": "body", "freeze_epochs": 1.0, "head_lr_scale": 4.0, "layer_decay": 0.8},
    **{"ema": True, "epochs": 3, "checkpoint_interval": 1e-6},
}
"""Saves, and so writes events, after each step."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_set(tmp_path_factory.mktemp("set"))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return save_weights(tmp_path / "start.safetensors", classes=5)


def save_weights(path: Path, classes: int, head_scale: float = 1) -> Path:
    model, _ = build_model(resolve(flags={**FLAGS, "seed": 7}).recipe, classes)
    state = model.state_dict()
    save_file({**state, "head.weight": head_scale * state["head.weight"]}, path)
    return path


def recipe(weights: Path, **changes: Any) -> Resolved:
    return resolve(flags={**FLAGS, **TUNED, "weights": str(weights), **changes})


def stopping_at(position: int, stop: StopRequest) -> Any:
    """A listener that requests a stop once a step of this position is on record."""

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["position"] >= position:
            stop.request("a test")

    return listen


def train_in_parts(data: Path, resolved: Resolved, run: Path, stops: tuple[int, ...]) -> None:
    for position in stops:
        stop = StopRequest()
        listeners = (stopping_at(position, stop),)
        assert train(data, resolved, run, listeners, stop) == INTERRUPTED
    assert train(data, resolved, run) == FINISHED


def newest(run: Path) -> dict[str, Any]:
    checkpoint, _ = Checkpoints(run).newest()
    assert checkpoint is not None
    return {"w": checkpoint.weights, "ema": checkpoint.ema, "state": checkpoint.state}


class TestStart:
    def test_the_run_records_what_it_began_with(self, data: Path, weights: Path) -> None:
        run = weights.parent / "run"
        assert train(data, recipe(weights), run) == FINISHED
        start = Run(run).start
        assert start["sha256"] == sha256_file(weights)
        (attempt,) = Run(run).starts()
        assert attempt["weights"] == start["line"]
        assert "48 of 50 tensors" in start["line"]
        assert "frozen until epoch 1" in attempt["derived"]
        assert start["line"] in explain(Run(run))

    @pytest.mark.exact
    def test_a_resumed_run_needs_the_file_no_more(self, data: Path, weights: Path) -> None:
        whole, parts = weights.parent / "whole", weights.parent / "parts"
        assert train(data, recipe(weights), whole) == FINISHED
        stop = StopRequest()
        first = train(data, recipe(weights), parts, (stopping_at(16, stop),), stop)
        assert first == INTERRUPTED
        weights.unlink()
        train_in_parts(data, recipe(weights), parts, (48, 64, 96))
        assert same(newest(parts), newest(whole))
        assert sum("weights" in start for start in Run(parts).starts()) == 1

    def test_mean_and_std_of_the_weights_outlast_them(self, data: Path, weights: Path) -> None:
        """A run that started from a run with another input resumes with that input."""
        source, run = weights.parent / "source", weights.parent / "run"
        assert train(data, recipe(weights), source) == FINISHED
        record = Run(source).record
        name = (source / "best").read_text()
        manifest = source / "checkpoints" / name / "manifest.json"
        text = manifest.read_text().replace("0.485", "0.111")
        manifest.write_text(text)
        (manifest.parent / "COMMITTED").write_text(sha256_file(manifest))
        resolved, stop = recipe(source), StopRequest()
        assert train(data, resolved, run, (stopping_at(16, stop),), stop) == INTERRUPTED
        shutil.rmtree(source)
        assert train(data, resolved, run) == FINISHED
        assert record["classes"] == ["class0", "class1", "class2"]
        for folder in (run / "checkpoints").iterdir():
            assert "0.111" in (folder / "manifest.json").read_text()

    def test_without_any_checkpoint_the_same_file_is_needed(
        self, data: Path, weights: Path
    ) -> None:
        run, stop = weights.parent / "run", StopRequest()
        assert train(data, recipe(weights), run, (stopping_at(16, stop),), stop) == INTERRUPTED
        shutil.rmtree(run / "checkpoints")
        kept = weights.read_bytes()
        weights.unlink()
        with pytest.raises(BadRequest, match=r"does not exist"):
            train(data, recipe(weights), run)
        model, _ = build_model(resolve(flags={**FLAGS, "seed": 8}).recipe, 5)
        save_file(model.state_dict(), weights)
        assert "has changed since this run began" in check_weights(Run(run), recipe(weights).recipe)
        with pytest.raises(BadRequest, match="no longer holds the weights"):
            train(data, recipe(weights), run)
        weights.write_bytes(kept)
        assert check_weights(Run(run), recipe(weights).recipe) == ""
        whole = weights.parent / "whole"
        assert train(data, recipe(weights), run) == FINISHED
        assert train(data, recipe(weights), whole) == FINISHED
        assert same(newest(run), newest(whole))

    def test_nothing_is_written_for_weights_that_do_not_fit(
        self, data: Path, weights: Path
    ) -> None:
        run = weights.parent / "run"
        weights.write_bytes(b"")
        with pytest.raises(BadRequest):
            train(data, recipe(weights), run)
        assert not run.exists()
        with pytest.raises(BadRequest):
            check_weights(Run(run), recipe(weights).recipe)

    def test_a_frozen_body_is_the_one_of_the_file(self, data: Path, weights: Path) -> None:
        run = weights.parent / "run"
        assert train(data, recipe(weights, freeze_epochs=0.0), run) == FINISHED
        model, _ = build_model(resolve(flags={**FLAGS, "seed": 7}).recipe, 5)
        first, last = model.state_dict(), newest(run)["w"]
        body = [name for name in first if not name.startswith("head")]
        assert all(torch.equal(first[name], last[name]) for name in body)

    @pytest.mark.exact
    @pytest.mark.parametrize("position", [16, 96])
    def test_a_run_that_began_by_the_first_rules_keeps_its_bits(
        self, data: Path, weights: Path, position: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such a run has no word on its rules in its record, as all those of 0.1: its new head was
        drawn, and BatchNorm takes new statistics after the thaw. Stopped before the thaw and
        without a checkpoint, or after it and with one."""
        run, whole, stop = weights.parent / "run", weights.parent / "whole", StopRequest()
        with monkeypatch.context() as patch:
            patch.setattr(loaders, "RULES", FIRST_RULES)
            assert train(data, recipe(weights), whole) == FINISHED
            listeners = (stopping_at(position, stop),)
            assert train(data, recipe(weights), run, listeners, stop) == INTERRUPTED
        record = Run(run).record
        assert record["start"].pop("rules") == 1
        (run / "run.json").write_text(json.dumps(record))
        if position == 16:
            shutil.rmtree(run / "checkpoints")
        assert train(data, recipe(weights), run) == FINISHED
        assert same(newest(run), newest(whole))
        new = weights.parent / "new"
        assert train(data, recipe(weights), new) == FINISHED
        assert not same(newest(new), newest(whole))

    def test_a_thaw_does_not_change_what_the_model_answers(self, data: Path, weights: Path) -> None:
        """BatchNorm of a body that was frozen goes on with the statistics of its weights."""
        run = weights.parent / "run"
        assert train(data, recipe(weights), run) == FINISHED
        first = load_file(weights)
        last = newest(run)["w"]
        kept = [name for name in first if "running" in name]
        assert kept and all(torch.equal(first[name], last[name]) for name in kept)
        assert not torch.equal(first["features.0.0.weight"], last["features.0.0.weight"])


class TestHighFromTheFirstStep:
    @pytest.fixture
    def high(self, tmp_path: Path) -> Path:
        """Weights for these classes, whose answers are far too sure."""
        return save_weights(tmp_path / "high.safetensors", classes=3, head_scale=300)

    def recipe(self, high: Path, lr: float, epochs: int) -> Resolved:
        whole = {"freeze": "", "freeze_epochs": 0.0, "warmup_epochs": 0.0, "head_lr_scale": 1.0}
        rare = {"eval_every": epochs, "checkpoint_interval": 0.1}
        return recipe(high, lr=lr, epochs=epochs, **whole, **rare)

    def test_a_loss_that_does_not_fall_ends_the_run_without_a_roll_back(
        self, data: Path, high: Path
    ) -> None:
        run, resolved = high.parent / "run", self.recipe(high, 1e-9, 120)
        for _ in range(2):
            with pytest.raises(StokerError, match=r"^high from the first step .* mean and dev"):
                train(data, resolved, run)
        assert not (run / "remedies.json").exists()
        assert not list((run / "checkpoints").glob("*.diverged"))
        assert len(list((run / "trouble").iterdir())) == 2

    @pytest.mark.exact
    def test_a_loss_that_falls_trains_on_and_may_be_stopped(self, data: Path, high: Path) -> None:
        whole, parts = high.parent / "whole", high.parent / "parts"
        resolved = self.recipe(high, 2e-6, 30)
        assert train(data, resolved, whole) == FINISHED
        losses = [step["sums"][0] / step["images"] for step in Run(whole).merged("step")]
        assert min(losses[:25]) > 3, losses  # so that it lasts longer than an explosion may
        stops = tuple(Run(whole).merged("step")[number]["position"] for number in (2, 10, 22))
        train_in_parts(data, resolved, parts, stops)
        assert same(newest(parts), newest(whole))
        assert not (parts / "remedies.json").exists()


class TestEarlyEnd:
    @pytest.mark.exact
    def test_patience_ends_a_run_that_goes_on_without_it(self, data: Path, tmp_path: Path) -> None:
        weights = save_weights(tmp_path / "start.safetensors", classes=3)
        whole, early = weights.parent / "whole", weights.parent / "early"
        plain = recipe(weights, lr=1e-9, epochs=5)  # nothing gets better
        ending = recipe(weights, lr=1e-9, epochs=5, patience=2)
        assert train(data, plain, whole) == FINISHED
        assert train(data, ending, early) == FINISHED
        run = Run(early)
        end = run.end()
        assert end is not None
        assert (end["outcome"], end["stale"]) == ("finished", 2)
        assert len(run.merged("evaluation")) == 3
        assert early_end_of(run, ending.recipe) == end["reason"] != ""
        assert early_end_of(run, plain.recipe) is None
        assert early_end_of(run, recipe(weights, patience=3).recipe) is None
        assert early_end_of(Run(whole), ending.recipe) == ""
        assert end["reason"] in "".join(explain(run))
        # The same again does not help, and it says what does: raised, then dropped.
        assert train(data, ending, early) == FINISHED
        assert "no step was made: raise it, or set it to 0" in "".join(explain(run))
        assert len(run.merged("evaluation")) == 3
        assert train(data, recipe(weights, lr=1e-9, epochs=5, patience=3), early) == FINISHED
        assert len(run.merged("evaluation")) == 4
        assert train(data, plain, early) == FINISHED
        assert same(newest(early), newest(whole))

    def test_a_run_killed_before_its_end_event_ends_there(self, data: Path, weights: Path) -> None:
        run = weights.parent / "run"
        ending = recipe(weights, target=0.01, epochs=4)
        assert train(data, ending, run) == FINISHED
        (log,) = (run / "attempts" / "0001").glob("rank0.jsonl")
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if '"end"' not in line))
        steps = len(Run(run).merged("step"))
        assert train(data, ending, run) == FINISHED
        assert len(Run(run).merged("step")) == steps

    def test_rules_need_an_evaluation(self, tmp_path: Path, weights: Path) -> None:
        from samples import image_folder
        from stoker.data.images.encode import Storage
        from stoker.data.packing.pack import pack

        photos = image_folder(tmp_path / "photos", size=(8, 8), suffix="png", images=8)
        unsplit = pack(photos, tmp_path / "set", storage=Storage(codec="raw"), val_share=0)
        with pytest.raises(BadRequest, match="--patience needs an evaluation"):
            train(unsplit, recipe(weights, patience=2), tmp_path / "run")
