"""A model of one's own is drawn from the seed, and every mistake is one line with its place."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bits import same
from golden import check_golden
from own_models import GLOBALS, NET, RANDOM, WRONG, write
from stoker.errors import BadRequest
from stoker.recipe.model_file import read_code
from stoker.recipe.recipe import Recipe
from stoker.train.model.build import IMAGENET_MEAN, Normalise, build_model, check_image_sizes
from stoker.train.model.own_code import trust
from stoker.train.model.start import try_model
from stoker.train.trials.memory import parameters

pytestmark = pytest.mark.exact
CLASSES = 5


def own(folder: Path, text: str, function: str = "build", **keys: object) -> Recipe:
    """The recipe of a trusted text."""
    code = read_code(write(folder, text), function)
    trust(code)
    name = f"net.py:{function}"
    recipe = Recipe(model=name, model_code=code.digest, image_size=8)
    return replace(recipe, **keys)  # type: ignore[arg-type]


class TestBuild:
    def test_the_seed_decides_the_weights(self, tmp_path: Path) -> None:
        recipe = own(tmp_path, NET)
        torch.manual_seed(3)
        one = build_model(recipe, CLASSES)[0].state_dict()
        two = build_model(recipe, CLASSES)[0].state_dict()
        other = build_model(replace(recipe, seed=1), CLASSES)[0].state_dict()
        assert same(one, two)
        assert not same(one, other)
        assert one["head.weight"].shape == (CLASSES, 4)

    def test_numbers_that_are_drawn_at_import_are_the_same_each_time(self, tmp_path: Path) -> None:
        recipe, images = own(tmp_path, RANDOM), torch.ones(2, 3, 8, 8)
        models = [build_model(recipe, CLASSES)[0].eval() for _ in range(2)]
        assert same(*[model.state_dict() for model in models])
        assert torch.equal(*[model(images) for model in models])

    def test_a_class_is_a_function_too(self, tmp_path: Path) -> None:
        model, _ = build_model(own(tmp_path, NET, "Net"), CLASSES)
        assert type(model).__name__ == "Net"

    def test_the_input_is_imagenets_unless_the_model_says(self, tmp_path: Path) -> None:
        assert build_model(own(tmp_path, NET), CLASSES)[1].mean == IMAGENET_MEAN
        text = NET.replace(
            "    return Net(classes)",
            "    net = Net(classes)\n"
            "    net.pretrained_cfg = {'mean': (0, 0, 0), 'std': [1, 1, 1.0]}\n"
            "    return net",
        )
        _, normalise = build_model(own(tmp_path, text), CLASSES)
        assert normalise == Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    def test_a_buffer_called_mean_is_the_models_own_business(self, tmp_path: Path) -> None:
        text = NET.replace(
            "        self.drop",
            "        self.register_buffer('mean', nn.init.ones_(self.head_mean()))\n"
            "        self.drop",
        ).replace(
            "    def forward",
            "    def head_mean(self):\n        import torch\n        return torch.zeros(3)\n\n"
            "    def forward",
        )
        assert build_model(own(tmp_path, text), CLASSES)[1] == Normalise()

    def test_it_passes_the_checks_of_all_models(self, tmp_path: Path) -> None:
        recipe = own(tmp_path, NET, ema=True)
        model, _ = build_model(recipe, CLASSES)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        check_image_sizes(model, recipe, CLASSES)
        try_model(recipe)
        assert same(before, model.state_dict())
        assert model.training
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_its_size_is_known_without_numbers(self, tmp_path: Path) -> None:
        recipe = own(tmp_path, NET)
        count = sum(p.numel() for p in build_model(recipe, CLASSES)[0].parameters())
        assert parameters(recipe, CLASSES) == count

    def test_what_it_sets_for_the_whole_process_is_put_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        def settings() -> list[object]:
            return [
                Path.cwd(),
                list(sys.path),
                torch.get_default_dtype(),
                torch.get_num_threads(),
                torch.is_grad_enabled(),
                torch.are_deterministic_algorithms_enabled(),
                torch.backends.cudnn.benchmark,
                torch.get_float32_matmul_precision(),
                random.getstate(),
                np.random.get_state()[1].tolist(),  # type: ignore[union-attr, index]
            ]

        before = settings()
        model, _ = build_model(own(tmp_path, GLOBALS), CLASSES)
        assert settings() == before
        assert isinstance(model, nn.Module)


def refusal(recipe: Recipe) -> str:
    with pytest.raises(BadRequest) as caught:
        check_image_sizes(build_model(recipe, CLASSES)[0], recipe, CLASSES)
    return str(caught.value)


def refusals(folder: Path) -> Iterator[str]:
    """What a user reads about each wrong text."""
    functions = (
        *("no_argument", "two_arguments", "raises", "speechless", "leaves", "nothing"),
        *("untrained", "without_weights", "lazy", "wrong_shape", "wrong_size", "Idle"),
        *("Backwards", "Remembers", "narrow", "constant"),
    )
    for function in functions:
        yield refusal(own(folder, WRONG, function))
    yield refusal(own(folder, WRONG, "Uncopied", ema=True))
    for text in ("import not_installed_here\n" + NET, NET + "\n1 / 0\n"):
        yield refusal(own(folder, text))
    yield refusal(own(folder, NET, pretrained=True))
    yield refusal(replace(own(folder, NET), model_code="0" * 64))


def test_golden_refusals(tmp_path: Path) -> None:
    # PyTorch's own words differ from version to version.
    lines = [re.sub(r"(px|RuntimeError): .*", r"\1: ...", line) for line in refusals(tmp_path)]
    assert not [line for line in lines if "\n" in line or not line.startswith("net.py")]
    check_golden("own_model", lines)
