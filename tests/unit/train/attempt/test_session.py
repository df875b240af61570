"""The same call starts a run, goes on with it, or finds it finished."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bits import same
from measured import held, measured
from samples import image_folder, picture
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.errors import BadRequest, Interrupted, StokerError
from stoker.fleet.launcher import ELASTIC
from stoker.measure.spans import PARTS
from stoker.recipe.resolve import Resolved, resolve
from stoker.run.directory import Run
from stoker.run.events import Event
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.stopping import StopRequest, listening
from stoker.train import process_group
from stoker.train.attempt import assembly, session
from stoker.train.attempt.end import FINISHED, INTERRUPTED
from stoker.train.attempt.session import train
from stoker.train.device import WORKSPACE
from stoker.train.loaders import prepare
from stoker.train.process_group import Ranks
from tiny_runs import FLAGS, one_thread_alone  # noqa: F401

TINY: dict[str, Any] = {**FLAGS, "epochs": 2}
EVERY_STEP = {"checkpoint_interval": 1e-6}
"""Saves, and so writes events, after each step."""
STEPS, TRAIN, VAL = 7, 60, 15
ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"))


def recipe(**changes: Any) -> Resolved:
    return resolve(flags={**TINY, **changes})


def packed(root: Path, name: str, **folder: Any) -> Path:
    photos = image_folder(root / f"{name} photos", size=(8, 8), suffix="png", **folder)
    storage = Storage(codec="raw")
    return pack(photos, root / name, storage=storage, val_share=0, shard_images=16, workers=1)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packed sets: the usual one, one of other images, one with nothing to evaluate on."""
    root = tmp_path_factory.mktemp("sets")
    return {
        "usual": packed(root, "usual", images=20, val=5),
        "other": packed(root, "other", images=21, val=5),
        "unsplit": packed(root, "unsplit", images=10),
    }


@pytest.fixture
def data(sets: dict[str, Path]) -> Path:
    return sets["usual"]


def steps_of(run: Path) -> list[int]:
    """Every step that any attempt took."""
    return [event["step"] for event in Run(run).events() if event["kind"] == "step"]


def events_of(run: Path, kind: str) -> list[Event]:
    return [event for event in Run(run).events() if event["kind"] == kind]


def counts_of(run: Path) -> list[tuple[int, ...]]:
    keys = ("position", "images", "top1", "top5")
    return [tuple(event[key] for key in keys) for event in events_of(run, "evaluation")]


def newest(run: Path) -> dict[str, Any]:
    """Weights, average, optimiser and place of the newest checkpoint."""
    found, torn = Checkpoints(run).newest()
    assert found is not None
    assert torn == []
    place = {key: found.facts[key] for key in ("position", "step", "evaluated", "best")}
    return {"weights": found.weights, "ema": found.ema, "state": found.state, "place": place}


@pytest.fixture(scope="module")
def finished_run(sets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert train(sets["usual"], recipe(), path) == FINISHED
    return path


@pytest.fixture
def whole(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a run that was never interrupted."""
    return shutil.copytree(finished_run, tmp_path / "whole")


class TestFinished:
    @pytest.fixture
    def run(self, whole: Path) -> Path:
        return whole

    def test_the_run_says_so(self, run: Path) -> None:
        assert Run(run).finished
        (end,) = events_of(run, "end")
        assert (end["step"], end["position"]) == (STEPS, STEPS * 16)

    def test_every_step_is_there_once_and_in_order(self, run: Path) -> None:
        assert steps_of(run) == list(range(STEPS))
        assert [event["images"] for event in events_of(run, "step")] == [16] * STEPS

    def test_each_evaluation_counts_every_image(self, run: Path) -> None:
        found = events_of(run, "evaluation")
        assert [event["position"] for event in found] == [64, 112]
        for event in found:
            assert event["images"] == VAL
            assert 0 <= event["top1"] <= event["top5"] == VAL

    def test_samples_left_unseen_are_owned_up_to(self, run: Path) -> None:
        (attempt,) = events_of(run, "attempt")
        assert (attempt["unseen"], attempt["steps"]) == (2 * TRAIN - STEPS * 16, STEPS)
        assert any("8 samples" in warning for warning in attempt["warnings"])

    def test_the_last_checkpoint_is_the_end_and_says_how_to_use_it(
        self, run: Path, data: Path
    ) -> None:
        checkpoints = Checkpoints(run)
        found, _ = checkpoints.newest()
        assert found is not None
        assert checkpoints.pointer("last") == checkpoints.names()[0]
        assert checkpoints.pointer("best") in checkpoints.names()
        assert found.facts["step"] == STEPS
        assert found.facts["classes"] == Dataset(data).classes
        assert found.facts["input"]["image_size"] == 8
        best = max(event["top1"] for event in events_of(run, "evaluation"))
        assert found.facts["best"] == best / VAL

    def test_the_recipe_beside_it_is_the_one_it_was_trained_with(self, run: Path) -> None:
        assert resolve(str(run / "recipe.toml")).recipe == recipe().recipe

    def test_the_same_call_again_trains_no_more(self, run: Path, data: Path) -> None:
        before = newest(run)
        assert train(data, recipe(), run) == FINISHED
        assert Run(run).finished
        assert steps_of(run) == list(range(STEPS))
        assert same(newest(run), before)
        assert len(Run(run).merged("evaluation")) == 2


def test_a_run_learns(data: Path, tmp_path: Path) -> None:
    """The classes are colours: a few epochs tell them apart."""
    assert train(data, recipe(model="resnet9_w4", epochs=8, lr=0.1), tmp_path / "run") == FINISHED
    last = events_of(tmp_path / "run", "evaluation")[-1]
    assert last["top1"] >= 0.8 * VAL


def test_a_set_without_a_split_to_evaluate_on_is_trained_all_the_same(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    assert train(sets["unsplit"], recipe(), tmp_path / "run") == FINISHED
    assert events_of(tmp_path / "run", "evaluation") == []
    assert newest(tmp_path / "run")["place"]["position"] == 48


@measured(5)
def test_the_parts_of_the_steps_add_up_to_the_time_they_took(data: Path, tmp_path: Path) -> None:
    changes = {"model": "resnet9_w8", "epochs": 16, "eval_every": 4}
    run = tmp_path / "run"
    assert train(data, recipe(**changes), run) == FINISHED
    (begin,), (end,) = (events_of(run, kind) for kind in ("attempt", "end"))
    laps = [event["parts"] for event in [*events_of(run, "step"), end]]
    assert {name for lap in laps for name in lap} <= set(PARTS)
    total = sum(seconds for lap in laps for seconds in lap.values())
    off = abs(total / (end["time"] - begin["time"]) - 1)
    held(off < 0.05, off)  # a busy machine may stop outside of any lap
    for part in ("read", "decode", "forward", "backward", "optimiser"):
        assert all(lap[part] >= 0 for lap in laps[:-1])


KINDS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adamw, averaged and mixed": {
        "optimizer": "adamw",
        "lr": 1e-3,
        "ema": True,
        "mixup_alpha": 0.3,
        "cutmix_prob": 0.5,
    },
}


def raise_bad_request() -> None:
    raise BadRequest("the link is too slow")


def request_stop(stop: StopRequest, when: Callable[[Event], bool]) -> Callable[[Event], None]:
    """A listener that requests a stop at an event."""

    def listen(event: Event) -> None:
        if when(event):
            stop.request("the test")

    return listen


class TestStopping:
    @pytest.mark.parametrize("kind", KINDS)
    def test_and_going_on_ends_in_the_same_bits(
        self, data: Path, tmp_path: Path, kind: str
    ) -> None:
        whole, run, stop = tmp_path / "whole", tmp_path / "run", StopRequest()
        assert train(data, recipe(**KINDS[kind]), whole) == FINISHED

        fifth = request_stop(stop, lambda event: event["kind"] == "step" and event["step"] == 4)
        cut = recipe(**KINDS[kind], **EVERY_STEP)
        assert train(data, cut, run, (fifth,), stop) == INTERRUPTED
        end = Run(run).end()
        assert end is not None
        assert (end["outcome"], end["reason"]) == (INTERRUPTED, "the test")
        assert 5 <= end["step"] < STEPS
        assert newest(run)["place"]["step"] == end["step"]
        assert steps_of(run) == list(range(end["step"]))
        assert not Run(run).finished

        assert train(data, recipe(**KINDS[kind]), run) == FINISHED
        assert steps_of(run) == list(range(STEPS))
        assert same(newest(run), newest(whole))
        assert [e["sums"] for e in Run(run).steps()] == [e["sums"] for e in Run(whole).steps()]

    def test_in_an_evaluation_leaves_it_for_the_next_attempt(
        self, data: Path, tmp_path: Path, whole: Path
    ) -> None:
        run, stop = tmp_path / "run", StopRequest()
        when = request_stop(stop, lambda event: event["kind"] == "evaluating")
        assert train(data, recipe(eval_batch_size=2), run, (when,), stop) == INTERRUPTED
        assert events_of(run, "evaluation") == []
        assert newest(run)["place"]["position"] == 64
        assert train(data, recipe(), run) == FINISHED
        assert counts_of(run) == counts_of(whole)
        assert same(newest(run), newest(whole))

    def test_before_the_first_step_leaves_a_run_that_goes_on(
        self, data: Path, tmp_path: Path
    ) -> None:
        stop = StopRequest()
        soon = request_stop(stop, lambda event: event["kind"] == "attempt")
        assert train(data, recipe(), tmp_path / "run", (soon,), stop) == INTERRUPTED
        assert steps_of(tmp_path / "run") == []
        end = Run(tmp_path / "run").end() or {}
        assert (end["step"], end["saved"]) == (0, True)
        assert train(data, recipe(), tmp_path / "run") == FINISHED
        assert steps_of(tmp_path / "run") == list(range(STEPS))

    def test_before_there_is_a_run_leaves_nothing(self, data: Path, tmp_path: Path) -> None:
        stop = StopRequest()
        stop.request("at once")
        with pytest.raises(Interrupted, match=r"^starting stopped \(at once\)"):
            train(data, recipe(), tmp_path / "run", (), stop)
        assert not (tmp_path / "run").exists()

    def test_a_rank_for_which_others_wait_joins_them_first(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ranks of other machines would wait for it inside torch, deaf to signals."""
        joined: list[Ranks] = []
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setattr(Ranks, "join", lambda *given: joined.append(ALONE) or ALONE)
        stop = StopRequest()
        stop.request("SIGTERM")
        with pytest.raises(Interrupted):
            train(data, recipe(), tmp_path / "run", (), stop)
        assert joined == [ALONE]

    def test_of_one_that_goes_on_stays_where_it_was(self, data: Path, tmp_path: Path) -> None:
        """By a signal while it starts, when a model may be loaded for minutes."""
        run = Run(tmp_path / "run")
        for kind in ("step", "attempt"):
            with listening() as stop:

                def signal_at(event: Event, kind: str = kind) -> None:
                    if event["kind"] == kind:
                        os.kill(os.getpid(), signal.SIGTERM)

                assert train(data, recipe(), run.path, (signal_at,), stop) == INTERRUPTED
        first, second = (
            {row["kind"]: row for row in run.attempt_rows(number, 0)}["end"] for number in (1, 2)
        )
        for name in ("step", "position", "best", "saved", "reason"):
            assert first[name] == second[name], name
        assert first["step"] > 0
        assert train(data, recipe(), run.path) == FINISHED
        assert steps_of(run.path) == list(range(STEPS))

    def test_after_every_step_still_comes_to_the_same_end(
        self, data: Path, tmp_path: Path, whole: Path
    ) -> None:
        run = tmp_path / "run"
        for _ in range(3 * STEPS):
            stop = StopRequest()
            soon = request_stop(stop, lambda event: event["kind"] == "step")
            if train(data, recipe(**EVERY_STEP), run, (soon,), stop) == FINISHED:
                break
        assert Run(run).finished
        assert len(Run(run).attempts()) > 2
        assert steps_of(run) == list(range(STEPS))
        assert same(newest(run), newest(whole))


class TestRefusal:
    @pytest.fixture
    def run(self, data: Path, tmp_path: Path) -> Path:
        """A run that was begun and stopped after a step."""
        stop = StopRequest()
        soon = request_stop(stop, lambda event: event["kind"] == "step")
        train(data, recipe(**EVERY_STEP), tmp_path / "run", (soon,), stop)
        return tmp_path / "run"

    def test_of_another_recipe_names_the_changed_keys(self, data: Path, run: Path) -> None:
        with pytest.raises(BadRequest, match="different recipe") as error:
            train(data, recipe(epochs=3, optimizer="adamw", lr=0.01), run)
        for change in ("epochs 2 -> 3", "optimizer 'sgd' -> 'adamw'", "lr 0.0 -> 0.01"):
            assert change in str(error.value)
        assert "batch_size" not in str(error.value)
        assert "--run" in str(error.value)

    def test_of_other_images_names_those_it_was_begun_with(
        self, sets: dict[str, Path], run: Path
    ) -> None:
        with pytest.raises(BadRequest, match="other images") as error:
            train(sets["other"], recipe(), run)
        assert str(sets["usual"].resolve()) in str(error.value)
        assert "--run" in str(error.value)

    def test_leaves_the_run_as_it_was(self, data: Path, run: Path) -> None:
        for _ in range(2):
            with pytest.raises(BadRequest):
                train(data, recipe(epochs=3), run)
        assert Run(run).attempts() == [1]
        assert train(data, recipe(), run) == FINISHED

    def test_does_not_meet_keys_that_only_say_how_to_run_here(self, data: Path, run: Path) -> None:
        here = {"threads": 2, "prefetch": 1, "eval_batch_size": 4, "keep_checkpoints": 5}
        assert train(data, recipe(**here), run) == FINISHED

    @pytest.mark.parametrize(("batch_size", "world"), [(1, 1), (7, 4), (16, 9)])
    def test_of_a_batch_too_small_for_the_ranks(
        self, data: Path, batch_size: int, world: int
    ) -> None:
        ranks = Ranks(0, world, 0, world, torch.device("cpu"))
        chosen = recipe(batch_size=batch_size).recipe
        with pytest.raises(BadRequest, match=f"batch_size = {batch_size} .* {world} rank"):
            prepare(Dataset(data), chosen, ranks)

    @pytest.mark.parametrize(
        ("mistake", "said"), [({"batch_size": 1}, "too small"), ({"model": "xyzzy"}, "xyzzy")]
    )
    def test_of_a_bad_request_leaves_its_run_free_for_the_mended_one(
        self, data: Path, tmp_path: Path, mistake: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(BadRequest, match=said):
            train(data, recipe(**mistake), tmp_path / "new")
        assert train(data, recipe(), tmp_path / "new") == FINISHED

    @pytest.mark.parametrize(
        ("sizes", "named"),
        [({"batch_size": 61}, "has 60 images"), ({"image_size": 129}, "their shorter side has 8")],
    )
    def test_of_sizes_that_the_set_does_not_have(
        self, data: Path, tmp_path: Path, run: Path, sizes: dict[str, int], named: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        with pytest.raises(BadRequest, match=named):
            train(data, recipe(**sizes), tmp_path / "new")
        assert not (tmp_path / "new").exists()
        with pytest.raises(BadRequest, match=named):
            train(data, recipe(**sizes), run, allowed=list(sizes))
        # A run that began when any size was allowed goes on.
        if "batch_size" in sizes:
            old, stop = tmp_path / "old", StopRequest()
            monkeypatch.setattr(session, "check_sizes", lambda *_: None)
            soon = request_stop(stop, lambda event: event["kind"] == "step")
            train(data, recipe(epochs=3, **sizes, **EVERY_STEP), old, (soon,), stop)
            monkeypatch.undo()
            assert train(data, recipe(epochs=3, **sizes), old) == FINISHED

    def test_of_a_folder_that_is_not_a_packed_set(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="not a packed set"):
            train(tmp_path, recipe(), tmp_path / "new")
        assert not (tmp_path / "new").exists()


class TestFailure:
    def test_is_on_record_and_the_run_goes_on_when_mended(self, data: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        run.mkdir()
        (run / "checkpoints").write_text("in the way")
        with pytest.raises(StokerError, match="cannot save a checkpoint"):
            train(data, recipe(), run)
        end = Run(run).end()
        assert end is not None
        assert end["outcome"] == "failed"
        assert "cannot save" in end["reason"]
        (run / "checkpoints").unlink()
        assert train(data, recipe(), run) == FINISHED
        assert [event["step"] for event in Run(run).steps()] == list(range(STEPS))

    def test_of_a_listener_does_not_end_a_run(self, data: Path, tmp_path: Path) -> None:
        heard: list[str] = []

        def broken(event: Event) -> None:
            heard.append(event["kind"])
            if event["kind"] == "evaluating":
                raise OSError("the screen is gone")

        assert train(data, recipe(), tmp_path / "run", (broken,)) == FINISHED
        assert Run(tmp_path / "run").finished
        assert heard[-1] == "evaluating"

    def test_to_save_the_end_of_a_run_is_told_and_nothing_counts_as_finished(
        self, data: Path, tmp_path: Path
    ) -> None:
        """The folder of checkpoints cannot be made: every save fails, the last one too."""
        run = tmp_path / "run"

        def in_the_way(event: Event) -> None:
            if event["kind"] == "attempt":
                (run / "checkpoints").write_text("in the way")

        with pytest.raises(StokerError, match="cannot save"):
            train(data, recipe(), run, (in_the_way,))
        assert not Run(run).finished
        assert [e["kind"] for e in Run(run).events()].count("save_failed") >= 1
        (run / "checkpoints").unlink()
        assert train(data, recipe(), run) == FINISHED

    def test_a_torn_checkpoint_is_named_and_the_one_before_taken(
        self, data: Path, tmp_path: Path, whole: Path
    ) -> None:
        run, stop = tmp_path / "run", StopRequest()
        fifth = request_stop(stop, lambda event: event["kind"] == "step" and event["step"] == 4)
        assert train(data, recipe(**EVERY_STEP), run, (fifth,), stop) == INTERRUPTED
        torn, before = Checkpoints(run).names()[:2]
        (run / "checkpoints" / torn / "COMMITTED").unlink()
        assert train(data, recipe(), run) == FINISHED
        attempt = events_of(run, "attempt")[-1]
        assert (attempt["torn"], attempt["step"]) == ([torn], int(before[:9]))
        assert [event["step"] for event in Run(run).steps()] == list(range(STEPS))
        assert same(newest(run), newest(whole))


class TestAnotherRecipe:
    def test_takes_effect_where_it_was_agreed_on(
        self, sets: dict[str, Path], tmp_path: Path
    ) -> None:
        train(sets["usual"], recipe(), tmp_path / "run")
        more = recipe(epochs=3, weight_decay=0.25, momentum=0.5)
        allowed = ["epochs", "weight_decay", "momentum"]
        assert train(sets["usual"], more, tmp_path / "run", allowed=allowed) == FINISHED
        found, _ = Checkpoints(tmp_path / "run").newest()
        assert found is not None
        groups = found.state["optimizer"]["param_groups"]
        assert [group["weight_decay"] for group in groups] == [0.25, 0.0]
        assert {group["momentum"] for group in groups} == {0.5}
        assert Run(tmp_path / "run").recipe_start() == (112, 7)

    @pytest.mark.parametrize("refused", [True, False], ids=["refused", "stopped"])
    def test_needs_no_consent_before_the_first_step(
        self, data: Path, tmp_path: Path, refused: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as a larger batch, which the refusal of a slow link advises."""
        run, stop = tmp_path / "run", StopRequest()
        if refused:
            monkeypatch.setattr(assembly, "check_link", lambda *_: raise_bad_request())
            with pytest.raises(BadRequest, match="slow"):
                train(data, recipe(), run)
        else:
            monkeypatch.setattr(assembly, "check_link", lambda *_: stop.request("at once"))
            assert train(data, recipe(), run, (), stop) == INTERRUPTED
        monkeypatch.undo()
        changed = recipe(batch_size=20, epochs=3)
        assert train(data, changed, run) == FINISHED
        assert train(data, changed, tmp_path / "fresh") == FINISHED
        assert same(newest(run), newest(tmp_path / "fresh"))
        with pytest.raises(BadRequest, match=r"--allow-change batch_size$"):
            train(data, recipe(batch_size=10, epochs=3), run)

    def test_is_not_on_record_where_nothing_is_left_to_train(
        self, sets: dict[str, Path], tmp_path: Path
    ) -> None:
        train(sets["usual"], recipe(), tmp_path / "run")
        with pytest.raises(BadRequest, match="less than one batch"):
            train(sets["usual"], recipe(batch_size=20), tmp_path / "run", allowed=["batch_size"])
        assert Run(tmp_path / "run").record["changes"] == []
        assert Run(tmp_path / "run").finished
        assert train(sets["usual"], recipe(), tmp_path / "run") == FINISHED

    def test_with_another_precision_goes_on(self, sets: dict[str, Path], tmp_path: Path) -> None:
        train(sets["usual"], recipe(), tmp_path / "run")
        more = recipe(epochs=3, amp="fp16")
        assert train(sets["usual"], more, tmp_path / "run", allowed=["epochs", "amp"]) == FINISHED


class TestPoorMounts:
    @pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP])
    def test_without_links_modes_locks_and_appending_it_trains_and_goes_on(
        self,
        sets: dict[str, Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
    ) -> None:
        def refuse(*given: Any, **named: Any) -> Any:
            raise OSError(number, os.strerror(number))

        real_open = os.open

        def open_unless_appending(path: Any, flags: int, *more: Any, **named: Any) -> int:
            return refuse() if flags & os.O_APPEND else real_open(path, flags, *more, **named)

        for name in ("link", "symlink", "chmod", "fchmod"):
            monkeypatch.setattr(os, name, refuse)
        monkeypatch.setattr(os, "open", open_unless_appending)
        monkeypatch.setattr(fcntl, "flock", refuse)
        stop = StopRequest()
        soon = request_stop(stop, lambda event: event["kind"] == "attempt")
        assert train(sets["usual"], recipe(), tmp_path / "run", (soon,), stop) == INTERRUPTED
        assert train(sets["usual"], recipe(), tmp_path / "run") == FINISHED
        assert [event["step"] for event in Run(tmp_path / "run").steps()] == list(range(STEPS))


class TestStoredSizes:
    """An image size above what is stored is noted once, before step 1."""

    @pytest.mark.parametrize("image_size", [8, 9])
    def test_of_training_images(self, sets: dict[str, Path], image_size: int) -> None:
        resolved = recipe(image_size=image_size)
        notes = prepare(Dataset(sets["usual"]), resolved.recipe, ALONE).fit.notes
        assert [note.split(":")[0] for note in notes] == [
            f"image_size = {image_size} is above what is stored"
        ] * (image_size > 8)

    def test_of_evaluated_images(self, tmp_path: Path) -> None:
        photos = image_folder(tmp_path / "photos", images=20, val=5, size=(8, 8), suffix="png")
        for path in (photos / "val").rglob("*.png"):
            picture(0, 1, (6, 6)).save(path)
        out = pack(photos, tmp_path / "packed", storage=Storage(codec="raw"), workers=1)
        (note,) = prepare(Dataset(out), recipe().recipe, ALONE).fit.notes
        assert "the images of val have a shorter side of 6 px" in note

    def test_is_in_the_event_of_the_attempt(self, sets: dict[str, Path], tmp_path: Path) -> None:
        train(sets["usual"], recipe(image_size=12, epochs=1), tmp_path / "run")
        (attempt,) = events_of(tmp_path / "run", "attempt")
        assert any("image_size = 12 is above" in text for text in attempt["warnings"])


def test_a_run_in_use_is_refused_and_tried_again_where_nodes_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder may be a rank on a node that hangs, and that the other nodes have lost."""
    monkeypatch.setattr(session, "LOCK_WAIT_S", 0.0)
    monkeypatch.setattr(session, "ELASTIC_LOCK_WAIT_S", 0.0)
    holder = Run(tmp_path / "run")
    holder.lock()
    for error, elastic in ((BadRequest, ""), (Interrupted, "1")):
        if elastic:
            monkeypatch.setenv(ELASTIC, elastic)
        with pytest.raises(error, match="is being trained by process"):
            session.lock(Run(holder.path))
    holder.unlock()
    session.lock(Run(holder.path))


def test_cublas_is_told_before_cuda_starts(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: list[str | None] = []

    def join(*given: object) -> Ranks:
        values.append(os.environ.get(WORKSPACE))
        raise BadRequest("far enough")

    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)
    monkeypatch.setattr(Ranks, "join", join)
    for deterministic in (False, True):
        with pytest.raises(BadRequest, match="far enough"):
            train(sets["usual"], recipe(deterministic=deterministic), tmp_path / "run")
    assert values == [None, ":4096:8"]


class TestDevices:
    """A GPU that cannot train the recipe is refused, and nothing is left behind."""

    def test_bf16_on_a_gpu_without_it(
        self, sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process_group, "own_device", lambda *numbers: torch.device("cpu"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
        with pytest.raises(BadRequest, match="use --amp fp16"):
            train(sets["usual"], recipe(amp="bf16"), tmp_path / "run")
        assert list(tmp_path.iterdir()) == []

    def test_a_driver_that_is_too_old(
        self, sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", "13.2")
        monkeypatch.setattr(process_group, "gpus_at_hand", lambda: 1)
        with pytest.raises(BadRequest, match="CUDA_VISIBLE_DEVICES="):
            train(sets["usual"], recipe(), tmp_path / "run")
        assert list(tmp_path.iterdir()) == []
