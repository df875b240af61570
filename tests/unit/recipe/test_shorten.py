"""Another number of epochs scales the phases of a recipe; other recipes stay as they are."""

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
from stoker.recipe.shorten import scaled_phases


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


def test_a_recipe_without_phases_changes_only_where_its_warm_up_does_not_fit() -> None:
    assert resolve("cifar10-quick", {"epochs": 3}).recipe.warmup_epochs == 2
    assert resolve("cifar10-quick", {"epochs": 2}).recipe.warmup_epochs == 0.3636
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


def test_notes_golden() -> None:
    notes = [resolve("imagenet-resnet50", {"epochs": n}).note for n in (5, 2, 1)]
    check_golden("recipe_shorten", [*notes, resolve("cifar10-quick", {"epochs": 2}).note])
