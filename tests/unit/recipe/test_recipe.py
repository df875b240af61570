"""A recipe's name follows what shapes the result, and impossible values are refused by name."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.recipe.recipe import SPECS, TYPES, Phase, Recipe, dump_value
from stoker.recipe.resolve import preset_names, read_recipe, resolve

PLACE = [
    "model_file",
    "micro_batch",
    "eval_batch_size",
    "eval_every",
    "patience",
    "target",
    "checkpoint_interval",
    "interruption_hours",
    "keep_checkpoints",
    "rehearse",
    "time_limit",
    "max_ram",
    "grace",
    "spot_notice",
    "stall_after",
    "divergence_retries",
    "threads",
    "prefetch",
    "log_interval",
]
SHAPING = [name for name in SPECS if name not in PLACE]

LIMITS = {
    "epochs": ([1], [0, -1]),
    "batch_size": ([1], [0, -8]),
    "lr": ([0.0, 3.2], [-0.1, math.nan]),
    "lr_base": ([1e-9], [0.0, -0.1, math.nan]),
    "lr_base_size": ([1], [0]),
    "lr_base_scale": (["linear", "sqrt"], ["quadratic"]),
    "scheduler": (["cosine", "onecycle", "constant"], ["poly"]),
    "warmup_epochs": ([0.0, 0.5], [-1.0, math.nan]),
    "min_lr_ratio": ([0.0], [-0.01]),
    "decay_rate": ([0.5], [0.0, -1.0]),
    "momentum": ([0.0, 0.9999], [-0.1, 1.0]),
    "weight_decay": ([0.0], [-1e-4]),
    "clip_grad": ([0.0], [-1.0]),
    "class_weights": (["off", "balanced", "sqrt"], ["", "inverse"]),
    "dropout": ([0.0, 0.99], [-0.1, 1.0]),
    "drop_path": ([0.0, 0.99], [-0.1, 1.0]),
    "freeze_epochs": ([0.0, 0.5], [-1.0, math.nan]),
    "head_lr_scale": ([0.1, 10.0], [0.0, -1.0, math.nan]),
    "layer_decay": ([0.5, 1.0], [0.0, 1.1, math.nan]),
    "patience": ([0, 3], [-1]),
    "target": ([0.0, 0.9, 1.0], [-0.1, 90.0, math.nan]),
    "label_smoothing": ([0.0, 1.0], [-0.1, 1.5, math.nan]),
    "mixup_alpha": ([0.0], [-0.2]),
    "cutmix_alpha": ([0.1], [0.0, -1.0]),
    "cutmix_prob": ([0.0, 1.0], [-0.1, 1.01]),
    "ema_decay": ([0.0, 1.0], [-0.1, 1.0001]),
    "image_size": ([1], [0]),
    "crop": (["resized", "pad", "centre"], ["center", "five"]),
    "crop_scale": ([0.08, 1.0], [0.0, 1.1, -0.5]),
    "crop_pad": ([0], [-1]),
    "crop_pct": ([0.5, 1.0], [0.0, 1.1]),
    "auto_augment": (["off", "trivial", "rand"], ["", "autoaugment"]),
    "rand_ops": ([1, 14], [0, 15]),
    "rand_magnitude": ([0, 30], [-1, 31]),
    "color_jitter": ([0.0, 1.0], [-0.1, 1.1]),
    "random_erasing": ([0.0, 1.0], [-0.1, 1.1]),
    "amp": (["off", "tf32", "bf16", "fp16"], ["fp8"]),
    "seed": ([0], [-1]),
    "micro_batch": ([0], [-1]),
    "eval_batch_size": ([1], [0]),
    "eval_every": ([1], [0]),
    "checkpoint_interval": ([0.0], [-300.0]),
    "interruption_hours": ([0.1], [0.0]),
    "time_limit": ([0.0], [-1.0]),
    "max_ram": ([0.0, 0.5], [-1.0]),
    "grace": ([0.1], [0.0]),
    "stall_after": ([0.1], [0.0]),
    "divergence_retries": ([0], [-1]),
    "on_divergence": (["skip", "cut", "stop", "off"], ["", "retry"]),
    "on_damage": (["stop", "substitute"], ["", "skip"]),
    "spot_notice": (["auto", "off", "aws", "gcp", "azure"], ["ec2"]),
    "keep_checkpoints": ([1], [0]),
    "threads": ([0], [-1]),
    "prefetch": ([1], [0]),
    "log_interval": ([0.1], [0.0]),
}


def changed(name):
    """A value of a key that is allowed and is not the default."""
    default, kind = SPECS[name].default, TYPES[name]
    if name == "phases":
        return (Phase(from_epoch=0, image_size=32, batch_size=16),)
    if name == "decay_epochs":
        return (3.0, 6.5)
    if kind is bool:
        return not default
    if kind is str:
        return next(c for c in (*SPECS[name].metadata["choices"], "resnet18") if c != default)
    return default + 1 if kind is int else (default / 2 or 0.5)


def test_defaults_have_an_empty_text():
    assert Recipe().text() == ""


@pytest.mark.parametrize("name", SHAPING)
def test_a_changed_key_is_the_whole_text(name):
    value = changed(name)
    assert Recipe(**{name: value}).text() == f"{name} = {json.dumps(dump_value(value))}\n"


def test_every_shaping_key_gives_its_own_digest():
    digests = {Recipe(**{name: changed(name)}).digest() for name in SHAPING}
    assert len(digests | {Recipe().digest()}) == len(SHAPING) + 1


@pytest.mark.parametrize("name", PLACE)
def test_how_to_run_here_leaves_the_name_alone(name):
    elsewhere = Recipe(**{name: changed(name)})
    assert elsewhere != Recipe()
    assert elsewhere.text() == ""
    assert elsewhere.digest() == Recipe().digest()


@settings(deadline=None)
@given(st.sets(st.sampled_from(list(SPECS))), st.randoms())
def test_text_is_the_sum_of_its_keys_in_any_order(names, random):
    names -= {"weights"} if "pretrained" in names else set()  # they exclude each other
    shuffled = random.sample(sorted(names), len(names))
    whole = Recipe(**{name: changed(name) for name in shuffled})
    lines = [Recipe(**{name: changed(name)}).text() for name in sorted(names)]
    assert whole.text() == "".join(lines)


def test_old_names_stay():
    assert Recipe().digest() == "19234eeca6"
    assert Recipe(epochs=3, lr=0.5).digest("some-fingerprint") == "c045cde38d"


def test_digest_depends_on_its_context():
    recipe = Recipe(epochs=3)
    assert len({recipe.digest(), recipe.digest("a"), recipe.digest("b")}) == 3


def test_equal_recipes_have_the_same_digest():
    whole, real = Recipe(warmup_epochs=2, lr=1), Recipe(warmup_epochs=2.0, lr=1.0)
    assert whole == real
    assert whole.digest() == real.digest()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (good, _) in LIMITS.items() for value in good]
)
def test_values_up_to_the_limit_are_taken(name, value):
    assert getattr(Recipe(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (_, bad) in LIMITS.items() for value in bad]
)
def test_values_beyond_the_limit_are_refused_by_name(name, value):
    with pytest.raises(BadRequest, match=rf"^{name} .*{value!r}"):
        Recipe(**{name: value})


def test_the_table_of_limits_is_complete():
    limited = {
        name
        for name, spec in SPECS.items()
        if spec.metadata["choices"]
        or any(spec.metadata[limit] is not None for limit in ("at_least", "at_most", "above"))
    }
    assert limited == set(LIMITS)


def phases(*starts, image_size=32, batch_size=16):
    return tuple(
        Phase(from_epoch=start, image_size=image_size, batch_size=batch_size) for start in starts
    )


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"phases": phases(1)}, ["phases", "epoch 0"]),
        ({"phases": phases(1, 5)}, ["phases", "epoch 0"]),
        ({"phases": phases(0, 6, 3)}, ["phases", "ascending"]),
        ({"phases": phases(0, 3, 3)}, ["phases", "ascending"]),
        ({"phases": phases(-1, 0)}, ["phases"]),
        ({"phases": phases(0, 10), "epochs": 10}, ["phase", "epoch 10", "epochs = 10"]),
        ({"phases": phases(0, 5), "epochs": 4}, ["phase", "epoch 5", "epochs = 4"]),
        ({"phases": phases(0, batch_size=0)}, ["phases", "batch_size"]),
        ({"phases": phases(0, image_size=0)}, ["phases", "image_size"]),
        ({"warmup_epochs": 10.0, "epochs": 10}, ["warmup_epochs = 10", "epochs = 10"]),
        ({"warmup_epochs": 7.0, "epochs": 5}, ["warmup_epochs = 7", "epochs = 5"]),
        ({"scheduler": "step"}, ["scheduler", "decay_epochs"]),
    ],
)
def test_contradictions_are_refused(keys, names):
    with pytest.raises(BadRequest) as refusal:
        Recipe(**keys)
    assert all(name in str(refusal.value) for name in names)


def test_phases_and_step_decay_that_agree_are_taken():
    Recipe(
        epochs=10,
        phases=phases(0, 3, 9),
        scheduler="step",
        decay_epochs=(4.0, 8.0),
        warmup_epochs=9.9,
    )


@pytest.mark.parametrize("name", preset_names())
def test_presets_load_and_are_short(name):
    resolved = resolve(name)
    assert resolved.name == name
    assert resolved.recipe.text()
    assert len(read_recipe(name)[0].splitlines()) < 40


def test_the_promised_presets_are_there():
    assert {"cifar10-quick", "imagenet-resnet50"} <= set(preset_names())
