"""Which run a command means, and when its ranks are started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from run_records import record
from stoker.errors import FINISHED, INTERRUPTED, StokerError
from stoker.fleet.launcher import LaunchResult, first_failure
from stoker.recipe.resolve import Resolved, resolutions, resolve
from stoker.run.directory import Run
from stoker.survive.stopping import StopRequest
from stoker.train.attempt import launch
from stoker.train.attempt.launch import default_run, find_run

DATA, PRINT = Path("photos-packed"), "fingerprint"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begin(path: Path, resolved: Resolved) -> None:
    Run(path).create(record(values=resolved.recipe.values()), "")


def test_the_name_of_a_run_has_its_model() -> None:
    named = {
        recipe: default_run(DATA, PRINT, resolve(recipe)).name.rpartition("-")[0]
        for recipe in ("first-look", "cifar10-quick", "imagenet-resnet50")
    }
    assert named == {
        "first-look": "photos-first-look-resnet9_w16",
        "cifar10-quick": "photos-cifar10-quick-resnet9_w24",
        "imagenet-resnet50": "photos-imagenet-resnet50",
    }


@pytest.mark.parametrize("flags", [{}, {"model": "resnet18"}, {"epochs": 3}])
def test_a_run_with_a_name_of_an_earlier_version_goes_on(flags: dict[str, object]) -> None:
    candidates = resolutions(None, flags)
    # Earlier versions took the defaults, not the first look, for a command with --model.
    old = resolve(None if "model" in flags else "first-look", flags)
    path = default_run(DATA, PRINT, old, model=False)
    begin(path, old)
    found, resolved = find_run(None, DATA, PRINT, candidates)
    assert (found, resolved.recipe) == (path, old.recipe)
    found, resolved = find_run(str(path), DATA, PRINT, candidates)
    assert (found, resolved.recipe) == (path, old.recipe)


def test_a_run_that_kept_its_phases_keeps_them() -> None:
    old = resolve("imagenet-resnet50", {"epochs": 50}, scale=())
    begin(Path("run"), old)
    candidates = resolutions("imagenet-resnet50", {"epochs": 50})
    assert find_run("run", DATA, PRINT, candidates)[1].recipe == old.recipe
    # More epochs for it change nothing else either.
    longer = find_run("run", DATA, PRINT, resolutions("imagenet-resnet50", {"epochs": 55}))[1]
    assert longer.recipe.phases == old.recipe.phases


@pytest.mark.parametrize(
    "flags",
    [{"batch_size": 512}, {"image_size": 128}, {"epochs": 30, "batch_size": 512, "image_size": 96}],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_run_whose_phases_did_not_follow_its_sizes_keeps_them(
    flags: dict[str, object], named: bool
) -> None:
    old = resolve("imagenet-resnet50", flags, scale=("epochs",))
    path = default_run(DATA, PRINT, old)
    begin(path, old)
    candidates = resolutions("imagenet-resnet50", flags)
    found, resolved = find_run(str(path) if named else None, DATA, PRINT, candidates)
    assert (found, resolved.recipe) == (path, old.recipe)
    assert "an earlier version began it" in resolved.note
    # Another size is none that the run began with: the phases follow it.
    other = {**flags, "batch_size": 64}
    changed = find_run(str(path), DATA, PRINT, resolutions("imagenet-resnet50", other))[1].recipe
    assert [phase.batch_size for phase in changed.phases] == [128, 96, 64]


def test_phases_follow_sizes_that_a_run_did_not_begin_with() -> None:
    begin(Path("run"), resolve("imagenet-resnet50"))
    smaller = resolutions("imagenet-resnet50", {"batch_size": 512})
    found = find_run("run", DATA, PRINT, smaller)[1]
    assert found is smaller[0]
    begin(Path("small"), found)
    assert find_run("small", DATA, PRINT, smaller)[1] is found
    # More epochs change nothing else.
    longer = resolutions("imagenet-resnet50", {"batch_size": 512, "epochs": 70})
    assert find_run("small", DATA, PRINT, longer)[1].recipe.phases == found.recipe.phases


@pytest.mark.parametrize("lr_base", [{}, {"lr_base": 0.02}])  # the preset's of now and of before
@pytest.mark.parametrize(
    ("recipe", "epochs"), [("finetune", 1), ("cifar10-quick", 2), ("cifar10-quick", 3)]
)
def test_a_run_keeps_the_beginning_that_it_has(
    recipe: str, epochs: int, lr_base: dict[str, float]
) -> None:
    if lr_base and recipe != "finetune":
        return
    flags = {"epochs": epochs, **({"weights": "body.pth"} if recipe == "finetune" else {})}
    old = resolve(recipe, {**flags, **lr_base}, scale=["epochs"])
    path = default_run(DATA, PRINT, old)
    begin(path, old)
    candidates = resolutions(recipe, flags)
    assert find_run(str(path), DATA, PRINT, candidates)[1].recipe == old.recipe
    assert find_run(None, DATA, PRINT, candidates)[1].recipe == old.recipe
    new = find_run("elsewhere", DATA, PRINT, candidates)[1].recipe
    assert new.warmup_epochs + new.freeze_epochs > old.recipe.freeze_epochs


@pytest.mark.parametrize("flags", [{}, {"epochs": 4}, {"lr_base": 0.1}])
@pytest.mark.parametrize("named", [True, False])
def test_a_run_that_began_with_a_preset_of_before_goes_on(
    flags: dict[str, object], named: bool
) -> None:
    flags = {"weights": "body.pth", **flags}
    old = resolve("finetune", {"lr_base": 0.02, **flags})
    path = default_run(DATA, PRINT, old)
    begin(path, old)
    found, resolved = find_run(
        str(path) if named else None, DATA, PRINT, resolutions("finetune", flags)
    )
    assert (found, resolved.recipe) == (path, old.recipe)
    new = find_run("elsewhere", DATA, PRINT, resolutions("finetune", flags))[1]
    assert new.recipe.lr_base == flags.get("lr_base", 0.004)


def test_a_new_run_has_the_new_rules() -> None:
    candidates = resolutions(None, {"model": "resnet18"})
    path, resolved = find_run(None, DATA, PRINT, candidates)
    assert path.name.startswith("photos-first-look-resnet18-")
    assert resolved is candidates[0]
    assert resolved.recipe.epochs == 30
    begin(path, resolved)
    assert find_run(None, DATA, PRINT, candidates) == (path, resolved)
    assert find_run("elsewhere", DATA, PRINT, candidates) == (Path("elsewhere"), resolved)


def outcome(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rounds: list[list[int]],
    *,
    stops: bool = False,
    steps: int = 0,
) -> tuple[int, int]:
    """The launcher's exit code for ranks that end so, round by round, and how often they began."""
    begun: list[object] = []

    def start(*arguments: object) -> LaunchResult:
        begun.append(arguments)
        codes = rounds[len(begun) - 1]
        return LaunchResult(codes, None, first_failure(codes))

    run, stop = Run(path / "run"), StopRequest()
    if stops:
        stop.request("SIGTERM")
    monkeypatch.setattr(launch, "start_ranks", start)
    monkeypatch.setattr(Run, "steps_made", property(lambda run: steps))
    (path / "run").mkdir()
    (path / "run" / "launcher.log").touch()
    plan = launch.plan_launch(2, ["photos"], path, run, stop)
    return launch.launch(plan, run), len(begun)


class TestRounds:
    """A rank that recorded a remedy steps aside (76): the same ranks go on with it."""

    @pytest.mark.parametrize("ends", [[76, 75], [75, 76], [76, 76], [1, 76], [76, -9], [76, -6]])
    def test_ranks_begin_again_after_one_that_stepped_aside(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[int]
    ) -> None:
        rounds = [ends, ends, [0, 0]]
        assert outcome(tmp_path, monkeypatch, rounds) == (FINISHED, 3)

    @pytest.mark.parametrize("ends", [[1, -9], [-6, 1], [-11, -6]])
    def test_and_after_one_that_was_killed_or_aborted_if_there_is_progress(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[int]
    ) -> None:
        assert outcome(tmp_path, monkeypatch, [ends, [0, 0]], steps=5) == (FINISHED, 2)

    def test_unless_the_run_was_told_to_stop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert outcome(tmp_path, monkeypatch, [[76, 75]], stops=True) == (INTERRUPTED, 1)

    @pytest.mark.parametrize("ends", [[1, 1], [1, -9]])
    def test_a_rank_that_failed_is_not_started_again_without_progress(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[int]
    ) -> None:
        with pytest.raises(StokerError, match="exit codes"):
            outcome(tmp_path, monkeypatch, [ends])


class TestNextStep:
    @pytest.mark.parametrize(
        ("recipe", "best", "proposes"),
        [("first-look", 0.7, True), ("first-look", 0.99, False), ("mine", 0.7, False)],
    )
    def test_after_a_first_look_that_left_something_to_gain(
        self, tmp_path: Path, recipe: str, best: float, proposes: bool
    ) -> None:
        run = Run(tmp_path / "run")
        record = {
            **{"recipe": recipe, "values": {"model": "resnet9_w16"}, "data": "x"},
            **{"fingerprint": "x", "classes": ["a"], "lanes": 1, "changes": []},
        }
        run.create(record, "")
        run.new_attempt()
        end = {"kind": "end", "outcome": "finished", "reason": None, "best": best}
        run.events_path(1, 0).write_text(json.dumps(end) + "\n")
        line = launch.next_step(run, "my photos")
        assert line.endswith("stoker train 'my photos' --recipe finetune --pretrained" * proposes)
        assert bool(line) == proposes
