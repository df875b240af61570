"""Other epochs, batch sizes and image sizes scale the phases of a recipe; the rest stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import check_golden
from stoker.errors import BadRequest
from stoker.recipe.recipe import Phase
from stoker.recipe.resolve import preset_names, resolve, show_config
from stoker.recipe.schedule import Timeline, lr_factor
from stoker.recipe.shorten import SIZES, for_epochs, resized, scaled_phases


def starts(epochs: int) -> list[int]:
    recipe = resolve("imagenet-resnet50", {"epochs": epochs}).recipe
    return [phase.from_epoch for phase in recipe.phases]


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(60, [0, 20, 40]), (18, [0, 6, 12]), (5, [0, 2, 3]), (3, [0, 1, 2]), (90, [0, 30, 60])],
)
def test_phases_keep_their_share_of_the_epochs(epochs: int, expected: list[int]) -> None:
    assert starts(epochs) == expected


def test_the_last_phases_are_kept_where_there_are_too_few_epochs() -> None:
    recipe = resolve("imagenet-resnet50", {"epochs": 2}).recipe
    assert [(p.from_epoch, p.image_size) for p in recipe.phases] == [(0, 192), (1, 224)]
    assert [p.image_size for p in resolve("imagenet-resnet50", {"epochs": 1}).recipe.phases] == [
        224
    ]


@given(st.sets(st.integers(1, 200), max_size=6), st.integers(1, 50), st.integers(1, 300))
def test_any_phases_fit_any_number_of_epochs(later: set[int], extra: int, after: int) -> None:
    begins = [0, *sorted(later)]
    phases = tuple(Phase(from_epoch=at, image_size=8, batch_size=8) for at in begins)
    kept = [p.from_epoch for p in scaled_phases(phases, begins[-1] + extra, after)]
    assert kept[0] == 0
    assert kept == sorted(set(kept))
    assert kept[-1] < after
    assert len(kept) == min(len(begins), after)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 18, 61])
def test_every_preset_can_be_shortened(name: str, epochs: int) -> None:
    recipe = resolve(name, {"epochs": epochs}).recipe
    assert Timeline.of(recipe, 100_000).epochs == epochs
    assert lr_factor(recipe, recipe.warmup_epochs) == pytest.approx(1.0)
    assert lr_factor(recipe, epochs) == pytest.approx(0.0)


@pytest.mark.parametrize("name", preset_names())
def test_the_recipe_itself_is_unchanged(name: str) -> None:
    plain = resolve(name)
    same = resolve(name, {"epochs": plain.recipe.epochs})
    assert same.recipe == plain.recipe
    assert same.note == ""


@pytest.mark.parametrize(
    ("epochs", "warm_up", "frozen"),
    [(1, 0.5, 0.5), (2, 0.5, 1), (3, 0.5, 1), (10, 0.5, 1), (40, 0.5, 1)],
)
def test_the_beginning_of_a_fine_tuning(epochs: int, warm_up: float, frozen: float) -> None:
    recipe = resolve("finetune", {"epochs": epochs}).recipe
    assert (recipe.warmup_epochs, recipe.freeze_epochs) == (warm_up, frozen)


def test_a_long_beginning_keeps_its_share(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("epochs = 10\nwarmup_epochs = 8\n")
    found = [resolve(str(file), {"epochs": n}).recipe.warmup_epochs for n in (1, 5, 9, 10, 11)]
    assert found == [0.8, 4.0, 7.2, 8.0, 8.0]


@given(st.integers(1, 60), st.floats(0, 59), st.integers(1, 60))
def test_a_beginning_never_jumps(before: int, length: float, after: int) -> None:
    values = {"epochs": before, "freeze_epochs": min(length, before * 0.9)}
    frozen = [
        {**values, **for_epochs(values, before, epochs, half=True)}["freeze_epochs"]
        for epochs in (after, after + 1)
    ]
    assert frozen[0] <= frozen[1] <= frozen[0] + 1
    assert frozen[0] < after


def test_a_recipe_without_phases_keeps_its_warm_up_up_to_half_of_the_run() -> None:
    assert resolve("cifar10-quick", {"epochs": 4}).recipe.warmup_epochs == 2
    assert resolve("cifar10-quick", {"epochs": 3}).recipe.warmup_epochs == 1.5
    assert resolve("cifar10-quick", {"epochs": 1}).recipe.warmup_epochs == 0.5
    assert resolve("cifar10-quick", {"epochs": 1}, scale=["epochs"]).recipe.warmup_epochs == 0.1818
    with pytest.raises(BadRequest, match="warmup_epochs"):
        resolve("cifar10-quick", {"epochs": 2, "warmup_epochs": 2.0})


def test_phases_of_a_recipe_without_epochs_stay(tmp_path: Path) -> None:
    """They are counted in epochs, whatever their number is."""
    file = tmp_path / "mine.toml"
    phase = "[[phases]]\nfrom_epoch = {}\nimage_size = 8\nbatch_size = 8\n"
    file.write_text(phase.format(0) + phase.format(4))
    recipe = resolve(str(file), {"epochs": 7}).recipe
    assert [phase.from_epoch for phase in recipe.phases] == [0, 4]


def test_what_is_shown_is_a_recipe_of_the_same_digest(tmp_path: Path) -> None:
    resolved = resolve("imagenet-resnet50", {"epochs": 7})
    file = tmp_path / "mine.toml"
    file.write_text(show_config(resolved))
    assert resolve(str(file)).recipe == resolved.recipe
    assert resolved.origins["phases"].endswith(", for --epochs 7")


PHASED = """epochs = 4
batch_size = 24
[[phases]]
from_epoch = 0
image_size = 16
batch_size = 32
[[phases]]
from_epoch = 2
image_size = 32
batch_size = 16
"""


@pytest.mark.parametrize(
    ("flags", "batches", "sizes"),
    [
        ({"batch_size": 512}, [1024, 768, 512], [160, 192, 224]),
        ({"image_size": 128}, [4096, 3072, 2048], [96, 96, 128]),
        ({"image_size": 448}, [4096, 3072, 2048], [320, 384, 448]),
        ({"image_size": 100}, [4096, 3072, 2048], [72, 84, 100]),
        ({"epochs": 2, "batch_size": 256, "image_size": 112}, [384, 256], [96, 112]),
        ({"batch_size": 1}, [2, 2, 1], [160, 192, 224]),
        ({"image_size": 1}, [4096, 3072, 2048], [1, 1, 1]),
    ],
)
def test_sizes_are_those_of_the_last_phase_and_the_others_follow(
    flags: dict[str, int], batches: list[int], sizes: list[int]
) -> None:
    resolved = resolve("imagenet-resnet50", flags)
    phases = resolved.recipe.phases
    assert [phase.batch_size for phase in phases] == batches
    assert [phase.image_size for phase in phases] == sizes
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in flags.items())
    assert resolved.origins["phases"].endswith(f", for {words}")


@given(
    st.lists(st.integers(1, 4096), min_size=1, max_size=5),
    st.integers(1, 10**12),
    st.sampled_from(SIZES),
)
def test_any_size_fits_any_phases(sizes: list[int], value: int, name: str) -> None:
    phases = tuple(
        Phase(from_epoch=at, **{**dict.fromkeys(SIZES, 8), name: size})
        for at, size in enumerate(sizes)
    )
    now = [getattr(phase, name) for phase in resized(phases, name, value)]
    assert now[-1] == value
    assert min(now) >= 1
    # What grew before grows, or stays.
    pairs = sorted(zip(sizes, now, strict=True))
    assert [size for _, size in pairs] == sorted(now)


@pytest.mark.parametrize("wrong", ["0", "-8"])
def test_phases_without_a_size_are_refused(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PHASED.replace("16", wrong))
    with pytest.raises(BadRequest, match="at least 1"):
        resolve(str(file), {"batch_size": 8, "image_size": 8})


def test_sizes_of_a_recipe_without_phases_are_its_own() -> None:
    resolved = resolve("cifar10-quick", {"batch_size": 32, "image_size": 64})
    assert resolved.note == ""
    assert resolved.recipe.phases == ()


def test_notes_golden(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PHASED)
    notes = [resolve("imagenet-resnet50", {"epochs": n}).note for n in (5, 2, 1)]
    notes.append(resolve("cifar10-quick", {"epochs": 2}).note)
    sizes = {"epochs": 2, "batch_size": 512, "image_size": 128}
    notes += [resolve("imagenet-resnet50", flags).note for flags in (sizes, {"lr": 1.7})]
    notes += [resolve(str(file), {"batch_size": 8}, scale=()).note, resolve(str(file)).note]
    check_golden("recipe_shorten", notes)
