"""stoker show-batch: the images of training, mixed as in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from golden import check_golden
from stoker.cli import main
from stoker.data.dataset import Dataset
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.show.batch import choose_batch, load_batch, tiles_of
from stoker.train.mixing import Mix
from stoker.train.model.build import Normalise
from stoker.train.model_input import input_maker
from tiny_runs import tiny_set

FLAGS = "--image-size 8 --crop pad --batch-size 16 --epochs 3 --auto-augment trivial"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_set(tmp_path_factory.mktemp("shown"))


def test_golden_answers(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = {"": 0, "--epoch 1 --step 2": 0, "--epoch 3": 2, "--step 11": 2, "--sheet x.gif": 2}
    lines = []
    for more, code in cases.items():
        assert main(["show-batch", str(packed), *FLAGS.split(), *more.split()]) == code
        answer = capsys.readouterr()
        lines.append(f"{more or 'no flags'}: {(answer.out + answer.err).strip()}")
    check_golden("cli_show_batch", lines)
    with Image.open("batch.png") as image:
        assert min(image.size) > 500


@pytest.mark.exact
@pytest.mark.parametrize("mixing", [{}, {"mixup_alpha": 0.5}, {"cutmix_prob": 1.0}])
def test_a_tile_is_what_the_model_sees(packed: Path, mixing: dict[str, float]) -> None:
    recipe = Recipe(
        batch_size=16, image_size=8, crop="pad", random_erasing=0.5, color_jitter=0.3, **mixing
    )
    dataset = Dataset(packed)
    timeline = Timeline.of(recipe, len(dataset.split("train")))
    loaded = load_batch(dataset, recipe, timeline, timeline.batch_of_step(5))
    tiles = tiles_of(loaded, recipe, dataset.classes)
    make = input_maker(Normalise((0.0,) * 3, (1.0,) * 3), torch.device("cpu"), False, "off")
    inputs = make(torch.from_numpy(loaded.images), Mix.of(loaded.drawn)).permute(0, 2, 3, 1)
    pixels = (inputs * 255).numpy()
    assert len(tiles) == 16
    for tile, expected in zip(tiles, pixels, strict=True):
        assert np.abs(tile.image - expected).max() <= 0.51  # rounded
    named = {line.split("% ")[-1] for tile in tiles for line in tile.lines[:1]}
    assert named <= set(dataset.classes)
    assert any("erased" in line for tile in tiles for line in tile.lines)


def test_an_epoch_begins_with_the_first_batch_that_begins_in_it() -> None:
    timeline = Timeline.of(Recipe(batch_size=16, epochs=4), 60)
    assert [choose_batch(timeline, epoch, 0).position for epoch in range(4)] == [0, 64, 128, 192]
    assert choose_batch(timeline, None, 3).position == 48
    assert choose_batch(timeline, 1, 2).step == 6
    for epoch, step in ((4, 0), (-1, 0), (None, -1), (None, 15), (3, 3)):
        with pytest.raises(BadRequest):
            choose_batch(timeline, epoch, step)
