"""Every sentence of the recipe modules, as users read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from golden import check_golden
from stoker.errors import BadRequest
from stoker.recipe.changes import changes, require_consent
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.resolve import parse_flag, read_recipe, resolve
from stoker.recipe.schedule import Timeline
from stoker.recipe.summary import derived_line, warnings

FILES = [
    "epochs = = 3",
    "epochz = 3",
    "zzzzzz = 1",
    "[training]\nepochs = 3",
    "[zzzzzz]",
    "epochs = 'ten'",
    "lr = true",
    "ema = 1",
    "model = 18",
    "decay_epochs = 30",
    "phases = 3",
    "[[phases]]\nfrom_epok = 0",
    "[[phases]]\nfrom_epoch = 0",
    "lr = nan",
    "crop = 'circle'",
    "epochs = 0",
    "momentum = 2.0",
    "lr_base = 0",
]


def phases(*starts: int, image_size: int = 32) -> tuple[Phase, ...]:
    return tuple(
        Phase(from_epoch=start, image_size=image_size, batch_size=2048 >> number)
        for number, start in enumerate(starts)
    )


TOGETHER: list[dict[str, Any]] = [
    {"phases": phases(1)},
    {"phases": phases(0, 5), "epochs": 4},
    {"phases": phases(0, image_size=0)},
    {"warmup_epochs": 7.0, "epochs": 5},
    {"decay_epochs": (-1.0,)},
    {"scheduler": "step"},
]


def refusals(folder: Path) -> Iterator[Any]:
    """Calls that are refused."""
    file = folder / "mine.toml"
    for text in FILES:
        file.write_text(text)
        yield lambda: resolve(str(file))
    for keys in TOGETHER:
        yield lambda keys=keys: Recipe(**keys)
    yield lambda: resolve(None, {"epochz": 3})
    yield lambda: read_recipe("imagenet-resnet5O")
    yield lambda: read_recipe("zzzzzz")
    yield lambda: read_recipe(str(folder / "absent.toml"))
    yield lambda: parse_flag("epochs", "2.5")
    yield lambda: parse_flag("lr", "high")
    yield lambda: parse_flag("decay_epochs", "3;6")
    yield lambda: parse_flag("lr", "-1")
    yield lambda: Timeline.of(Recipe(epochs=3, batch_size=64), 20)
    yield lambda: Timeline.of(Recipe(epochs=3, batch_size=64), 100, 250, 3)
    old = Recipe().values()
    yield lambda: require_consent("runs/one", changes(old, old), ["learning_rate"])
    for keys in ({"lr": 0.5, "epochs": 30, "threads": 2}, {"seed": 3, "lr": 0.5}):
        new = Recipe(**keys).values()  # type: ignore[arg-type]
        yield lambda new=new: require_consent("runs/one", changes(old, new), ["lr"])


def test_refusals_golden(tmp_path: Path) -> None:
    lines = []
    for call in refusals(tmp_path):
        with pytest.raises(BadRequest) as refusal:
            call()
        lines += str(refusal.value).replace(f"{tmp_path}/", "").splitlines()
    check_golden("recipe_refusals", lines)


def test_summaries_golden() -> None:
    lines = []
    for recipe, samples, world in (
        (Recipe(batch_size=2048, micro_batch=128, epochs=90, warmup_epochs=5.0), 1_281_167, 8),
        (Recipe(batch_size=50, epochs=1, lr=9.0), 77, 2),
        (Recipe(epochs=60, lr=0.001, phases=phases(0, 20, 40)), 1_281_167, 4),
        (resolve("imagenet-resnet50").recipe, 1_281_167, 8),
    ):
        timeline = Timeline.of(recipe, samples)
        lines += [derived_line(recipe, timeline, world), *warnings(recipe, timeline)]
    check_golden("recipe_summaries", lines)
