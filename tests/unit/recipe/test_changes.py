"""What may change without a word, what needs one, and what never may."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.recipe.changes import CONSENT, FIXED, HARMLESS, Change, changes, require_consent
from stoker.recipe.recipe import SPECS, Phase, Recipe, dump_value

OTHER: dict[str, Any] = {
    "model": "resnet18",
    "model_code": "1a2b3c",
    "model_file": "/somewhere/net.py",
    "phases": (Phase(from_epoch=0, image_size=32, batch_size=16),),
    "optimizer": "adamw",
    "lr_base_scale": "sqrt",
    "scheduler": "constant",
    "decay_epochs": (3.0, 6.0),
    "crop": "pad",
    "on_divergence": "cut",
    "on_damage": "substitute",
    "amp": "bf16",
    "spot_notice": "off",
    "warmup_epochs": 1.0,
    "momentum": 0.5,
    "decay_rate": 0.5,
    "ema_decay": 0.5,
    "crop_scale": 0.5,
    "crop_pct": 0.5,
    "label_smoothing": 0.5,
    "cutmix_prob": 0.5,
    "min_lr_ratio": 0.5,
    "class_weights": "sqrt",
    "dropout": 0.5,
    "drop_path": 0.5,
    "auto_augment": "rand",
    "color_jitter": 0.5,
    "random_erasing": 0.5,
    "weights": "model.safetensors",
    "freeze": "body",
    "layer_decay": 0.5,
    "target": 0.9,
}


def another(name: str) -> Any:
    """A value of a key that is not its default."""
    default = SPECS[name].default
    if name in OTHER:
        return OTHER[name]
    return not default if isinstance(default, bool) else default + 1


def values(**given: Any) -> dict[str, Any]:
    """Every value of a recipe, as the run's record has it."""
    found: dict[str, Any] = json.loads(json.dumps(Recipe(**given).values()))
    return found


BY_KIND = {
    kind: [name for name in SPECS if Change(name, None, None).kind == kind]
    for kind in (HARMLESS, CONSENT, FIXED)
}


class TestKinds:
    @pytest.mark.parametrize("name", SPECS)
    def test_every_key_is_of_one_kind(self, name: str) -> None:
        assert sum(name in names for names in BY_KIND.values()) == 1
        assert not (SPECS[name].metadata["place"] and SPECS[name].metadata["fixed"])

    @pytest.mark.parametrize(
        ("kind", "names"),
        [
            (FIXED, {"model", "pretrained", "weights", "optimizer", "ema", "seed", "layer_decay"}),
            (CONSENT, {"lr", "epochs", "batch_size", "scheduler", "phases", "amp", "freeze"}),
            (
                HARMLESS,
                {
                    "threads",
                    "patience",
                    "target",
                    "micro_batch",
                    "grace",
                    "keep_checkpoints",
                    "log_interval",
                },
            ),
        ],
    )
    def test_the_kinds_are_what_people_expect(self, kind: str, names: set[str]) -> None:
        assert names <= set(BY_KIND[kind])

    @pytest.mark.parametrize("name", SPECS)
    def test_what_is_harmless_leaves_the_digest_alone_and_nothing_else_does(
        self, name: str
    ) -> None:
        same = Recipe(**{name: another(name)}).digest() == Recipe().digest()
        assert same == (name in BY_KIND[HARMLESS])


class TestChanges:
    def test_the_same_recipe_has_none(self) -> None:
        assert changes(values(), values()) == []
        assert changes(values(lr=0.5, epochs=3), values(epochs=3, lr=0.5)) == []

    @pytest.mark.parametrize("name", SPECS)
    def test_every_key_is_compared(self, name: str) -> None:
        default, other = dump_value(SPECS[name].default), dump_value(another(name))
        (found,) = changes(values(), values(**{name: another(name)}))
        assert (found.name, found.before, found.after) == (name, default, other)
        (back,) = changes(values(**{name: another(name)}), values())
        assert (back.before, back.after) == (other, default)

    @pytest.mark.parametrize("name", SPECS)
    def test_a_key_that_the_run_was_begun_without_had_its_default(self, name: str) -> None:
        old = values()
        del old[name]
        assert changes(old, Recipe().values()) == []
        (found,) = changes(old, Recipe(**{name: another(name)}).values())
        assert found.before == dump_value(SPECS[name].default)

    def test_a_key_that_is_no_more_is_passed_over(self) -> None:
        assert changes({**values(), "forgotten": 3}, values()) == []

    def test_a_whole_number_is_the_same_with_a_point(self) -> None:
        assert changes(values(lr=1), values(lr=1.0)) == []

    @given(st.dictionaries(st.sampled_from(sorted(SPECS)), st.none(), max_size=8))
    def test_all_that_differ_are_found_in_the_order_of_the_recipe(
        self, chosen: dict[str, None]
    ) -> None:
        after = {**values(), **{name: dump_value(another(name)) for name in chosen}}
        assert [change.name for change in changes(values(), after)] == [
            name for name in SPECS if name in chosen
        ]


def refuse(allowed: list[str], **given: Any) -> None:
    require_consent("runs/one", changes(values(), values(**given)), allowed)


class TestConsent:
    def test_nothing_changed_needs_none(self) -> None:
        refuse([])
        refuse(["lr"])

    @pytest.mark.parametrize("name", BY_KIND[HARMLESS])
    def test_what_is_harmless_needs_none(self, name: str) -> None:
        refuse([], **{name: another(name)})

    @pytest.mark.parametrize("name", BY_KIND[CONSENT])
    def test_what_changes_training_needs_it(self, name: str) -> None:
        with pytest.raises(BadRequest, match=f"or accept with --allow-change {name}$"):
            refuse([], **{name: another(name)})
        refuse([name], **{name: another(name)})

    @pytest.mark.parametrize("name", BY_KIND[FIXED])
    def test_what_is_fixed_cannot_be_agreed_on(self, name: str) -> None:
        for allowed in ([], [name], list(SPECS)):
            with pytest.raises(BadRequest, match=r"name another --run$") as refusal:
                refuse(allowed, **{name: another(name)})
            assert "--allow-change" not in str(refusal.value)

    def test_every_key_that_needs_it_must_be_named(self) -> None:
        for allowed in ([], ["lr"], ["epochs"], ["hflip"]):
            with pytest.raises(BadRequest, match=r"--allow-change epochs,lr$"):
                refuse(allowed, lr=0.5, epochs=9, threads=2)
        refuse(["lr", "epochs"], lr=0.5, epochs=9, threads=2)
        refuse(["hflip", "lr", "epochs"], lr=0.5, epochs=9)

    @pytest.mark.parametrize("given", [{}, {"lr": 0.5}, {"seed": 3}])
    def test_a_key_that_does_not_exist_is_refused_by_name(self, given: dict[str, Any]) -> None:
        with pytest.raises(BadRequest, match=r"--allow-change learning_rate: .* no such key"):
            refuse(["lr", "learning_rate"], **given)


class TestTable:
    def test_all_that_differs_is_listed_with_its_kind(self) -> None:
        with pytest.raises(BadRequest) as refusal:
            refuse([], lr=0.5, threads=2, model="resnet18")
        assert str(refusal.value).splitlines() == [
            "runs/one was started with a different recipe:",
            "  model 'resnet9_w16' -> 'resnet18'  cannot be changed",
            "  lr 0.0 -> 0.5                      needs consent",
            "  threads 0 -> 2                     harmless",
            "name another --run",
        ]

    def test_what_was_agreed_on_is_listed_too(self) -> None:
        with pytest.raises(BadRequest, match=r"--allow-change epochs,lr") as refusal:
            refuse(["lr"], lr=0.5, epochs=30)
        assert "lr 0.0 -> 0.5" in str(refusal.value)
