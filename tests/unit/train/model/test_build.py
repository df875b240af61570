"""A model is named in the recipe, drawn from its seed, and refused by name if nobody has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stoker.errors import BadRequest
from stoker.recipe.recipe import Phase, Recipe
from stoker.train.model.build import Residual, build_model, check_image_sizes
from stoker.train.model.names import timm_names
from stoker.train.model.start import try_model

SMALL = Recipe(model="resnet9_w2")


def weights(recipe: Recipe, classes: int = 3) -> dict[str, Tensor]:
    return build_model(recipe, classes)[0].state_dict()


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "width"), [("resnet9", 64), ("resnet9_w2", 2), ("resnet9_w16", 16)]
    )
    def test_the_number_is_the_width_of_the_first_layer(self, name: str, width: int) -> None:
        first = next(iter(weights(Recipe(model=name)).values()))
        assert first.shape == (width, 3, 3, 3)

    @pytest.mark.parametrize("classes", [1, 2, 101])
    def test_there_is_an_output_for_each_class(self, classes: int) -> None:
        model, _ = build_model(SMALL, classes)
        assert model.eval()(torch.zeros(2, 3, 16, 16)).shape == (2, classes)

    @pytest.mark.parametrize("image_size", [8, 32, 48, 64])
    def test_any_usual_image_size_fits(self, image_size: int) -> None:
        model, _ = build_model(SMALL, 5)
        out = model(torch.randn(4, 3, image_size, image_size))
        assert out.shape == (4, 5)
        assert out.isfinite().all()

    def test_our_own_have_no_pretrained_weights(self) -> None:
        with pytest.raises(BadRequest, match=r"resnet9_w2 .*drop --pretrained"):
            build_model(replace(SMALL, pretrained=True), 3)

    def test_a_model_without_channels_is_refused(self) -> None:
        with pytest.raises(BadRequest, match="resnet9_w0"):
            build_model(Recipe(model="resnet9_w0"), 3)


class TestSeed:
    def test_the_same_seed_draws_the_same_weights(self) -> None:
        torch.manual_seed(1)
        one = weights(SMALL)
        torch.manual_seed(2)
        assert same(one, weights(SMALL))

    def test_another_seed_draws_other_weights(self) -> None:
        one, two = weights(SMALL), weights(replace(SMALL, seed=1))
        kernels = [name for name in one if one[name].ndim == 4]
        assert kernels
        assert not any(torch.equal(one[name], two[name]) for name in kernels)


class TestTimm:
    @pytest.fixture(autouse=True)
    def timm(self) -> None:
        pytest.importorskip("timm")

    @pytest.mark.parametrize(
        ("name", "meant"),
        [("resnet51", "resnet50"), ("resnet5O", "resnet50"), ("convnext_tny", "convnext_tiny")],
    )
    def test_an_unknown_name_is_refused_with_the_one_that_was_meant(
        self, name: str, meant: str
    ) -> None:
        with pytest.raises(BadRequest, match=f"no model called '{name}'") as error:
            build_model(Recipe(model=name), 3)
        assert f"'{meant}'" in str(error.value)

    def test_the_names_in_its_files_are_those_that_timm_has(self) -> None:
        """They are read without importing timm, which takes seconds."""
        import timm
        from timm.models import _registry

        current, renamed = timm_names(*timm.__path__)
        assert current == set(timm.list_models())
        assert current | renamed == set(_registry._model_entrypoints)

    def test_what_timm_itself_refuses_is_a_mistake(self) -> None:
        with pytest.raises(BadRequest, match=r"timm cannot build 'resnet50.nonsense'"):
            build_model(Recipe(model="resnet50.nonsense"), 3)

    @pytest.mark.parametrize(
        ("name", "size", "advice"),
        [
            ("vit_tiny_patch16_224", 64, "--image-size 224"),
            ("inception_v3", 32, "--image-size 299"),
        ],
    )
    def test_a_size_that_a_model_does_not_take_is_named_with_one_it_takes(
        self, name: str, size: int, advice: str
    ) -> None:
        recipe = Recipe(model=name, image_size=size)
        with pytest.raises(
            BadRequest, match=f"{name} does not take images of {size} px: use {advice}"
        ):
            try_model(recipe)
        phases = tuple(
            Phase(from_epoch=n, image_size=s, batch_size=8) for n, s in ((0, 224), (1, 64))
        )
        if size == 64:
            with pytest.raises(BadRequest, match="give its phases image_size = 224"):
                try_model(replace(recipe, phases=phases))

    def test_a_check_leaves_the_model_as_it_is(self) -> None:
        model, _ = build_model(Recipe(model="resnet10t"), 3)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        check_image_sizes(model, Recipe(model="resnet10t"), 3)
        assert model.training
        assert same(before, model.state_dict())
        with pytest.raises(BadRequest, match="no classifier"):
            check_image_sizes(model, Recipe(model="resnet10t"), 4)

    def test_a_name_like_no_other_is_refused_all_the_same(self) -> None:
        with pytest.raises(BadRequest, match="no model called 'xyzzy'"):
            build_model(Recipe(model="xyzzy"), 3)

    def test_a_known_name_is_built_for_our_classes_and_seed(self) -> None:
        recipe = Recipe(model="resnet10t")
        model, normalise = build_model(recipe, 3)
        assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
        assert len(normalise.mean) == len(normalise.std) == 3
        assert same(model.state_dict(), weights(recipe))


class TestDrops:
    def test_rates_of_zero_leave_the_model_as_it_was(self) -> None:
        assert same(weights(SMALL), weights(replace(SMALL, dropout=0.5, drop_path=0.5)))

    @pytest.mark.parametrize("rates", [{"dropout": 0.5}, {"drop_path": 0.5}])
    @pytest.mark.parametrize("name", ["resnet9_w2", "resnet10t"])
    def test_training_drops_by_the_seed_and_evaluation_nothing(
        self, name: str, rates: dict[str, float]
    ) -> None:
        if not name.startswith("resnet9"):
            pytest.importorskip("timm")
        model = build_model(Recipe(model=name, **rates), 3)[0].train()
        images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            for weight in model.parameters():  # timm's residual branches begin with zeros
                weight.copy_(torch.ones_like(weight) if weight.ndim == 1 else weight)

        def logits(seed: int) -> Tensor:
            torch.manual_seed(seed)
            out: Tensor = model(images).detach()
            return out

        assert torch.equal(logits(1), logits(1))
        assert not torch.equal(logits(1), logits(2))
        model.eval()
        assert torch.equal(logits(1), logits(2))

    def test_dropped_paths_are_made_up_for(self) -> None:
        residual = Residual(4, drop_path=0.5).train()
        images = torch.randn(2000, 4, 2, 2)
        branch = residual.body(images)
        ratio = ((residual(images) - images) / branch).nan_to_num()[:, 0, 0, 0]
        kept = branch[:, 0, 0, 0] > 1e-3
        assert set(ratio[kept].round().tolist()) == {0.0, 2.0}
        assert 0.4 < (ratio[kept] > 1).float().mean() < 0.6

    def test_a_model_without_a_place_for_it_is_refused_by_flag(self) -> None:
        pytest.importorskip("timm")
        with pytest.raises(BadRequest) as refusal:
            build_model(Recipe(model="vgg11", drop_path=0.1), 3)
        assert str(refusal.value) == (
            "vgg11 has no place for --drop-path: drop --drop-path, or choose another --model"
        )
