"""Recipe files are read strictly, layers win in order, and what is shown can be read again."""

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.recipe.other_tools import aliases, foreign_settings
from stoker.recipe.recipe import SPECS, TYPES, Phase, Recipe, dump_value
from stoker.recipe.resolve import parse_flag, preset_names, resolve, show_config

FOREIGN = {name for name, _, _ in foreign_settings()}
FLOATS = [name for name, kind in TYPES.items() if kind is float]


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    """Writes a recipe file and gives its path, the same one each time."""
    path = tmp_path_factory.mktemp("recipes") / "mine.toml"

    def write(text):
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refusal(file, **flags):
    with pytest.raises(BadRequest) as caught:
        resolve(file, flags)
    return str(caught.value)


def with_one_letter_changed(key):
    """All such words for a short key, where they hurt most; some at each place of a long one."""
    letters = string.ascii_lowercase if len(key) < 5 else "acdeit"
    for place, old in enumerate(key):
        for letter in letters:
            word = key[:place] + letter + key[place + 1 :]
            if letter != old and word not in SPECS:
                yield word


def as_near(word, key):
    """Other keys that one wrong letter turns into this word as well."""
    return [
        other
        for other in SPECS
        if other != key
        and len(other) == len(word)
        and sum(a != b for a, b in zip(word, other, strict=True)) == 1
    ]


@pytest.mark.parametrize("key", SPECS)
def test_one_wrong_letter_is_answered_with_the_right_key(key, recipe_file):
    value = json.dumps(dump_value(SPECS[key].default))
    wrongly_answered = {}
    for word in with_one_letter_changed(key):
        if word in FOREIGN:  # drop is what timm calls dropout
            continue
        file = recipe_file(f"# a recipe\n\n# {word} = 1\n{word} = {value}\n")
        named = refusal(file).removeprefix(f"{file}:4: unknown key '{word}': did you mean ")
        if set(named.removesuffix("?").split(" or ")) != {
            f"'{near}'" for near in (key, *as_near(word, key))
        }:
            wrongly_answered[word] = named
    assert not wrongly_answered


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("epoch", "epochs"),
        ("drop_path_rate", "drop_path"),
        ("batchsize", "batch_size"),
        ("batch-size", "batch_size"),
        ("Label_Smoothing", "label_smoothing"),
        ("weigth_decay", "weight_decay"),
        ("warmup", "warmup_epochs"),
        ("learning_rate", "lr"),
    ],
)
def test_other_slips_are_answered_too(word, key, recipe_file):
    file = recipe_file(f"seed = 1\n{word} = 1\n")
    assert refusal(file) == f"{file}:2: unknown key '{word}': did you mean '{key}'?"


@pytest.mark.parametrize(
    ("theirs", "tools", "ours"),
    [
        ("smoothing", "timm", "label_smoothing"),
        ("opt", "timm and torchvision", "optimizer"),
        ("aa", "timm", "auto_augment"),
        ("reprob", "timm", "random_erasing"),
        ("drop", "timm", "dropout"),
        ("arch", "fastai", "model"),
        ("sched", "timm", "scheduler"),
        ("mixup", "timm", "mixup_alpha"),
        ("img_size", "timm", "image_size"),
        ("workers", "timm, torchvision and Ultralytics", "threads"),
        ("model_ema", "timm and torchvision", "ema"),
        ("wd", "torchvision", "weight_decay"),
        ("torchcompile", "timm", "compile"),
        ("max_epochs", "Lightning", "epochs"),
        ("load_path", "Composer", "weights"),
    ],
)
def test_names_of_other_tools_are_answered_with_ours(theirs, tools, ours, recipe_file):
    file = recipe_file(f"{theirs} = 1\n")
    answer = f"unknown key '{theirs}': it comes from {tools}: Stoker calls it '{ours}'"
    assert refusal(file).startswith(f"{file}:1: {answer}")
    assert answer in refusal(None, **{theirs: 1})


def test_every_alias_leads_to_a_key():
    assert set(aliases().values()) <= set(SPECS)
    assert not set(aliases()) & set(SPECS)


def test_a_word_like_no_key_points_to_the_list(recipe_file):
    file = recipe_file("zzzzzz = 1\n")
    assert refusal(file) == f"{file}:1: unknown key 'zzzzzz': 'stoker show-config' lists every key"


@pytest.mark.parametrize("key", [name for name in SPECS if name != "phases"])
def test_a_key_in_a_section_is_refused_with_advice(key, recipe_file):
    value = json.dumps(dump_value(SPECS[key].default))
    file = recipe_file(f"\n[training]\n{key} = {value}\n")
    said = refusal(file)
    assert said.startswith(f"{file}:2: unknown section '[training]'")
    assert said.endswith(f"recipe keys have no sections: write '{key} = ...'")


@pytest.mark.parametrize(
    ("word", "key"), [("opt", "optimizer"), ("smoothing", "label_smoothing"), ("epoch", "epochs")]
)
def test_advice_on_a_section_names_a_key_that_exists(word, key, recipe_file):
    assert f"write '{key} = ...'" in refusal(recipe_file(f"[training]\n{word} = 1\n"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", '"ten"'),
        ("epochs", "2.5"),
        ("epochs", "true"),
        ("epochs", "{ first = 1 }"),
        ("batch_size", "[256]"),
        ("lr", '"0.1"'),
        ("lr", "true"),
        ("lr", "[0.1]"),
        ("ema", "1"),
        ("ema", '"yes"'),
        ("hflip", "0.5"),
        ("model", "18"),
        ("model", "false"),
        ("amp", "true"),
        ("decay_epochs", "30"),
        ("decay_epochs", '"30,60"'),
        ("decay_epochs", '[30, "60"]'),
        ("decay_epochs", "[30, true]"),
        ("phases", "3"),
        ("phases", "[3]"),
        ("phases", "{ from_epoch = 0, image_size = 32, batch_size = 8 }"),
        ("phases", "[{ from_epoch = 0, image_size = 32 }]"),
        ("phases", "[{ from_epoch = 0, image_size = 32.0, batch_size = 8 }]"),
        ("phases", '[{ from_epoch = 0, image_size = 32, batch_size = "8" }]'),
        ("phases", "[{ from_epoch = false, image_size = 32, batch_size = 8 }]"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_place(key, value, recipe_file):
    file = recipe_file(f"seed = 1\n{key} = {value}\n")
    said = refusal(file)
    assert said.startswith(f"{file}:2: ")
    assert key in said


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_numbers_that_are_no_numbers_are_refused(key, value, recipe_file):
    file = recipe_file(f"{key} = {value}\n")
    assert refusal(file).startswith(f"{file}:1: {key} ")


def test_an_infinite_value_is_refused_or_can_be_shown_and_read_again(recipe_file):
    unreadable = []
    for key in FLOATS:
        try:
            resolved = resolve(recipe_file(f"{key} = inf\n"))
        except BadRequest:
            continue
        try:
            assert resolve(recipe_file(show_config(resolved))).recipe == resolved.recipe
        except BadRequest:
            unreadable.append(key)
    assert not unreadable


def test_a_value_beyond_its_limit_is_refused_with_its_place(recipe_file):
    file = recipe_file("epochs = 3\nlabel_smoothing = 1.5\n")
    assert refusal(file) == f"{file}:2: label_smoothing must be at most 1, not 1.5"


@pytest.mark.parametrize("key", ["from_epoch", "image_size", "batch_size"])
def test_one_wrong_letter_in_a_phase_is_answered_with_the_right_key(key, recipe_file):
    phase = "[[phases]]\nfrom_epoch = 0\nimage_size = 32\nbatch_size = 8\n"
    for word in with_one_letter_changed(key):
        said = refusal(recipe_file("epochs = 9\n" + phase.replace(key, word)))
        assert f"unknown key 'phases.{word}': did you mean '{key}'?" in said


def test_a_wrong_key_in_a_later_phase_is_named_with_its_own_line(recipe_file):
    phase = "[[phases]]\nfrom_epoch = 0\nimage_size = 32\nbatch_size = 8\n"
    later = "[[phases]]\nfrom_epoch = 5\nimage_size = 64\nbatch_sise = 8\n"
    file = recipe_file(phase + later)
    assert refusal(file).startswith(f"{file}:8: ")


def test_text_that_is_no_toml_is_refused_with_the_file(recipe_file):
    file = recipe_file("epochs = = 3\n")
    said = refusal(file)
    assert said.startswith(f"{file}: not valid TOML")
    assert "line 1" in said


def test_a_key_set_twice_is_refused(recipe_file):
    file = recipe_file("epochs = 3\nepochs = 4\n")
    assert refusal(file).startswith(f"{file}: not valid TOML")


def test_a_missing_file_is_named(tmp_path):
    file = str(tmp_path / "absent.toml")
    assert refusal(file).startswith(f"cannot read recipe file {file}")


def test_a_misspelt_preset_is_answered_with_the_nearest_and_all():
    said = refusal("imagenet-resnet5O")
    assert "did you mean 'imagenet-resnet50'?" in said
    assert all(name in said for name in preset_names())


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("epochs", "12", 12),
        ("lr", "3", 3.0),
        ("weight_decay", "5e-5", 5e-5),
        ("model", "resnet50", "resnet50"),
        ("crop", "pad", "pad"),
        ("decay_epochs", "30,60,80.5", (30.0, 60.0, 80.5)),
    ],
)
def test_flags_become_values(key, text, value):
    parsed = parse_flag(key, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("epochs", "2.5"),
        ("epochs", "ten"),
        ("batch_size", "0"),
        ("lr", "high"),
        ("lr", "-1"),
        ("lr", "nan"),
        ("crop_pct", "1.5"),
        ("crop", "center"),
        ("decay_epochs", "30,late"),
        ("decay_epochs", ""),
    ],
)
def test_a_bad_flag_is_refused_by_its_name(key, text):
    with pytest.raises(BadRequest, match=rf"^--{key.replace('_', '-')}\b"):
        parse_flag(key, text)


LAYERED = {"epochs": (20, 30), "lr": (0.5, 0.75), "model": ("a", "b"), "ema": (True, False)}


@settings(deadline=None)
@given(st.sets(st.sampled_from(list(LAYERED))), st.sets(st.sampled_from(list(LAYERED))))
def test_flags_win_over_the_file_and_the_file_over_defaults(recipe_file, filed, flagged):
    lines = [f"{name} = {json.dumps(LAYERED[name][0])}" for name in sorted(filed)]
    file = recipe_file("# mine\n" + "\n".join(lines))
    resolved = resolve(file, {name: LAYERED[name][1] for name in flagged})
    assert resolved.name == "mine"
    assert set(resolved.origins) == set(SPECS)
    for name in SPECS:
        value, origin = SPECS[name].default, "default"
        if name in filed:
            value, origin = LAYERED[name][0], f"{file}:{sorted(filed).index(name) + 2}"
        if name in flagged:
            value, origin = LAYERED[name][1], "flag"
        assert (getattr(resolved.recipe, name), resolved.origins[name]) == (value, origin)


def test_nothing_asked_for_gives_the_defaults():
    assert resolve().recipe == Recipe()
    assert set(resolve().origins.values()) == {"default"}


def test_the_origin_of_a_preset_value_is_the_line_in_the_preset():
    resolved = resolve("imagenet-resnet50", {"epochs": 60})
    assert resolved.origins["model"] == "recipe imagenet-resnet50:3"
    assert resolved.origins["phases"] == "recipe imagenet-resnet50:21"
    assert resolved.origins["epochs"] == "flag"
    assert resolved.origins["momentum"] == "default"


def value_of(name):
    limits, kind = SPECS[name].metadata, TYPES[name]
    if limits["choices"]:
        return st.sampled_from(limits["choices"])
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(string.ascii_letters + string.digits + ' ._-/#"\\=éß\t\n')
    low = next((limit for limit in (limits["at_least"], limits["above"]) if limit is not None), 0)
    if kind is int:
        return st.integers(low, 10**12 if limits["at_most"] is None else limits["at_most"])
    return st.floats(
        low,
        limits["at_most"],
        exclude_min=limits["above"] is not None,
        allow_nan=False,
        allow_infinity=False,
    )


@st.composite
def any_keys(draw):
    """Keys of a recipe that contradict neither their limits nor each other."""
    plain = [n for n in SPECS if n not in ("phases", "decay_epochs", "warmup_epochs")]
    chosen = draw(st.sets(st.sampled_from(plain)))
    keys = {name: draw(value_of(name)) for name in plain if name in chosen}
    if "model" in keys:
        keys["model"] = f"a{keys['model'].replace('.py', '')}"  # no file, as "/" would be
    if keys.get("weights"):
        keys.pop("pretrained", None)
    epochs = keys.get("epochs", SPECS["epochs"].default)
    keys["warmup_epochs"] = draw(st.floats(0, epochs, exclude_max=True))
    starts = draw(st.sets(st.integers(1, epochs - 1), max_size=3)) if epochs > 1 else set()
    sizes = st.integers(1, 5000)
    if draw(st.booleans()):
        keys["phases"] = tuple(
            Phase(from_epoch=start, image_size=draw(sizes), batch_size=draw(sizes))
            for start in sorted({0, *starts})
        )
    if keys.get("scheduler") == "step" or draw(st.booleans()):
        ats = st.floats(0, 1e6)
        keys["decay_epochs"] = tuple(draw(st.lists(ats, min_size=1, max_size=4)))
    return keys


@settings(deadline=None, max_examples=200)
@given(any_keys())
def test_what_is_shown_can_be_read_again(recipe_file, keys):
    resolved = resolve(None, keys)
    again = resolve(recipe_file(show_config(resolved)))
    assert again.recipe == resolved.recipe
    assert again.recipe.digest() == resolved.recipe.digest()


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_that_is_shown_can_be_read_again(name, recipe_file):
    resolved = resolve(name)
    again = resolve(recipe_file(show_config(resolved)))
    assert again.recipe == resolved.recipe
    assert again.recipe.digest() == resolved.recipe.digest()


def test_each_shown_value_has_its_origin_beside_it(recipe_file):
    file = recipe_file("epochs = 8\n[[phases]]\nfrom_epoch = 0\nimage_size = 32\nbatch_size = 64\n")
    shown = show_config(resolve(file, {"lr": 0.5})).splitlines()
    words = [line.split() for line in shown]
    assert ["epochs", "=", "8", "#", f"{file}:1"] in words
    assert ["lr", "=", "0.5", "#", "flag"] in words
    assert ["momentum", "=", "0.9", "#", "default"] in words
    assert ["[[phases]]", "#", f"{file}:2"] in words


def test_every_key_is_shown():
    shown = {line.split()[0] for line in show_config(resolve()).splitlines()}
    assert shown | {"phases"} == set(SPECS)


@pytest.mark.parametrize(("seconds", "told"), [(5.0, True), (59, True), (60.0, False), (0, False)])
def test_a_short_checkpoint_interval_is_told_with_its_unit(seconds, told):
    note = resolve(flags={"checkpoint_interval": seconds}).note
    expected = f"--checkpoint-interval {seconds:g} is in seconds, not in epochs or steps"
    assert note == (expected if told else "")
