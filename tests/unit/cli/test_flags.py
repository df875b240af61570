"""A flag for each key of the recipe; whatever is not one is refused with the nearest."""

from __future__ import annotations

import argparse
import re
import string
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

import pytest

from stoker.cli.flags import Parser, add_recipe_flags, resolve_flags
from stoker.cli.train import parser as train_parser
from stoker.errors import BadRequest
from stoker.recipe.other_tools import foreign_settings
from stoker.recipe.recipe import SPECS, TYPES, Recipe
from stoker.recipe.resolve import resolve

MOST_FLAGS = 74
MOST_COMMON_FLAGS = 14
TRAIN = train_parser()
HELPS = ("-h", "--help", "--help-all")
FLAGS = [flag for flag in TRAIN._option_string_actions if flag not in HELPS]
FOREIGN = {name for name, _, _ in foreign_settings()}
KEYS = [name for name, spec in SPECS.items() if not spec.metadata["rare"]]
OTHER_VALUES = {
    "model": ("resnet18", "resnet18"),
    "optimizer": ("adamw", "adamw"),
    "on_divergence": ("cut", "cut"),
    "spot_notice": ("gcp", "gcp"),
    "lr_base_scale": ("sqrt", "sqrt"),
    "scheduler": ("onecycle", "onecycle"),
    "crop": ("pad", "pad"),
    "weights": ("model.safetensors", "model.safetensors"),
    "freeze": ("body", "body"),
    "class_weights": ("sqrt", "sqrt"),
    "auto_augment": ("trivial", "trivial"),
    "amp": ("fp16", "fp16"),
    "decay_epochs": ("3,6.5", (3.0, 6.5)),
}
"""What to write behind a flag that takes words, and what comes of it."""


def parser_of(verb: str) -> Parser:
    module = import_module(f"stoker.cli.{verb.replace('-', '_')}")
    made = module.parser()
    assert isinstance(made, Parser)
    return made


def recipe(*words: str) -> Recipe:
    """The recipe that a command line asks for."""
    return resolve_flags(TRAIN.parse(["photos", *words])).recipe


def refusal(*words: str) -> str:
    with pytest.raises(BadRequest) as caught:
        TRAIN.parse(["photos", *words])
    return str(caught.value)


def named(message: str) -> set[str]:
    """The flags that a refusal proposes."""
    proposal = message.partition("did you mean ")[2].partition("?")[0]
    return set(re.findall(r"'(--[\w-]+)'", proposal))


def with_one_letter_changed(flag: str) -> Iterator[str]:
    """All such flags for a short one, where they hurt most; some at each place of a long one."""
    letters = string.ascii_lowercase if len(flag) < 7 else "aeix"
    for place, old in enumerate(flag):
        for letter in letters:
            changed = flag[:place] + letter + flag[place + 1 :]
            if old.isalpha() and letter != old and changed not in FLAGS:
                yield changed


@pytest.mark.parametrize("flag", FLAGS)
def test_one_wrong_letter_is_refused_with_the_right_flag(flag: str) -> None:
    wrongly_answered = {}
    for word in with_one_letter_changed(flag):
        if word[2:] in FOREIGN:  # --drop is what timm calls --dropout
            continue
        message = refusal(f"{word}=1")
        if f"unknown flag '{word}'" not in message or flag not in named(message):
            wrongly_answered[word] = message
    assert not wrongly_answered


@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_proposed_exists(flag: str) -> None:
    for word in (f"{flag}s", flag[:-1], flag.replace("-", "_").replace("__", "--")):
        if word not in FLAGS:
            assert named(refusal(word)) <= set(FLAGS)


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--label_smoothing", "--label-smoothing"),
        ("--no_hflip", "--no-hflip"),
        ("--train.epochs", "--epochs"),
        ("--train.label_smoothing", "--label-smoothing"),
        ("--Epochs", "--epochs"),
        ("--batchsize", "--batch-size"),
        ("--epoch", "--epochs"),
        ("--weigth-decay", "--weight-decay"),
        ("--learning-rate", "--lr"),
        ("--warmup", "--warmup-epochs"),
        ("-epochs", "--epochs"),
        ("--rank", "--ranks"),
    ],
)
def test_other_peoples_spellings_are_answered_with_ours(word: str, flag: str) -> None:
    message = refusal(word, "1")
    assert f"unknown flag '{word}': did you mean '{flag}'? 'stoker train --help-all'" in message


@pytest.mark.parametrize("words", [["--epo", "3"], ["--epochs=3", "--no-ech"], ["--lr-b=1"]])
def test_a_beginning_of_a_flag_is_not_the_flag(words: list[str]) -> None:
    assert "unknown flag" in refusal(*words)


def test_a_word_too_many_is_named() -> None:
    assert "unknown word 'paintings'" in refusal("paintings")


@pytest.mark.parametrize("word", ["--xyzzyplugh", "--threshold", "--quiet", "-l", "-r", "-y"])
def test_what_resembles_nothing_gets_no_proposal(word: str) -> None:
    message = refusal(word)
    assert "did you mean" not in message
    assert "'stoker train --help-all' lists every flag" in message


def test_every_key_that_fits_on_a_line_has_a_flag() -> None:
    assert {f"--{key.replace('_', '-')}" for key in KEYS} <= set(FLAGS)
    assert "--phases" not in FLAGS


def test_there_are_not_too_many_flags() -> None:
    helps = {"help", "==SUPPRESS=="}
    assert len({action.dest for action in TRAIN._actions} - helps) <= MOST_FLAGS


def as_typed(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in ((), "") else str(value).removesuffix(".0")


def test_help_all_shows_each_flag_with_its_default() -> None:
    text = TRAIN.format_help_all()
    assert "%%" not in text
    for key in KEYS:
        assert f"--{key.replace('_', '-')}" in text
        assert f"[{as_typed(SPECS[key].default)}]" in " ".join(text.split())


def flags_in(text: str) -> set[str]:
    """The flags that a help text explains."""
    return set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE))


def test_help_shows_the_flags_that_people_use() -> None:
    short = flags_in(TRAIN.format_help())
    assert {"--recipe", "--model", "--epochs", "--batch-size", "--lr", "--run", "--ranks"} <= short
    assert len(short - {"--help-all"}) <= MOST_COMMON_FLAGS
    # The short help leaves nothing behind that the long one then lacks.
    assert len(flags_in(TRAIN.format_help_all())) > 3 * len(short)


@pytest.mark.parametrize("verb", ["doctor", "show-config"])
def test_other_verbs_refer_to_the_flags_of_train(verb: str) -> None:
    text = parser_of(verb).format_help()
    assert "'stoker train'" in text
    assert "--batch-size" not in text
    assert "--batch-size" in parser_of(verb).format_help_all()


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize(
    "verb",
    [
        *("train", "doctor", "show-config", "pack", "prices"),
        *("bench-data", "bench-train", "bench-table", "bench-reproduce"),
    ],
)
def test_help_fits_the_terminal_and_breaks_between_words(
    monkeypatch: pytest.MonkeyPatch, verb: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = parser_of(verb).format_help_all()
    assert max(map(len, text.splitlines())) <= columns
    assert not re.search(r"--[a-z-]*-$", text, re.MULTILINE)


@pytest.mark.parametrize("key", KEYS)
def test_a_flag_sets_its_key_and_nothing_else(key: str) -> None:
    flag, default = f"--{key.replace('_', '-')}", SPECS[key].default
    if TYPES[key] is bool:
        words, value = [f"--no-{flag[2:]}" if default else flag], not default
    elif key in OTHER_VALUES:
        text, value = OTHER_VALUES[key]
        words = [flag, text]
    else:
        value = default + 1 if TYPES[key] is int else 0.5
        words = [flag, str(value)]
    made, plain = recipe(*words), recipe()
    assert getattr(made, key) == value
    assert type(getattr(made, key)) is type(value)
    changed = {name for name in KEYS if getattr(made, name) != getattr(plain, name)}
    assert changed == {key} - {name for name in [key] if getattr(plain, name) == value}
    joined = recipe("=".join(words))
    assert joined == made


def test_no_flags_give_the_first_look() -> None:
    assert recipe() == resolve("first-look").recipe


def test_a_model_keeps_the_rest_of_the_first_look() -> None:
    assert recipe("--model", "resnet50") == replace(resolve("first-look").recipe, model="resnet50")


@pytest.mark.parametrize(
    ("words", "hflip"),
    [([], True), (["--no-hflip"], False), (["--hflip"], True), (["--no-hflip", "--hflip"], True)],
)
def test_a_switch_has_two_ways(words: list[str], hflip: bool) -> None:
    assert recipe(*words).hflip is hflip


@pytest.mark.parametrize(
    ("words", "amp"),
    [
        ([], "off"),
        (["--amp"], "bf16"),
        (["--amp", "--epochs", "3"], "bf16"),
        (["--amp", "fp16"], "fp16"),
        (["--amp=tf32"], "tf32"),
        (["--amp", "off"], "off"),
    ],
)
def test_amp_alone_is_bf16(words: list[str], amp: str) -> None:
    assert recipe(*words).amp == amp


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--epochs", "3.5"], "--epochs must be a whole number, not '3.5'"),
        (["--epochs", ""], "--epochs must be a whole number, not ''"),
        (["--lr", "fast"], "--lr must be a number, not 'fast'"),
        (["--lr", "-0.1"], "--lr: lr must be at least 0"),
        (["--lr", "inf"], "finite"),
        (
            ["--decay-epochs", "3;6"],
            "--decay-epochs must be numbers separated by commas, not '3;6'",
        ),
        (["--crop", "circle"], "crop takes one of resized, pad, centre, not 'circle'"),
        (["--momentum", "1.5"], "momentum must be at most 0.9999"),
        (["--crop-scale", "0"], "crop_scale must be above 0"),
    ],
)
def test_a_wrong_value_is_refused_with_what_the_flag_takes(
    words: list[str], complaint: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        recipe(*words)
    assert complaint in str(caught.value)


def test_a_flag_wins_over_the_recipe_it_is_given_with() -> None:
    parser = Parser(prog="stoker train")
    add_recipe_flags(parser)
    parsed: argparse.Namespace = parser.parse(["--recipe", "cifar10-quick", "--epochs", "2"])
    assert resolve_flags(parsed).recipe.warmup_epochs == 1.0
    resolved = resolve_flags(parser.parse(["--recipe", "cifar10-quick", "--epochs", "30"]))
    assert (resolved.recipe.epochs, resolved.origins["epochs"]) == (30, "flag")
    assert resolved.recipe.batch_size == 256
    assert resolved.origins["batch_size"].startswith("recipe cifar10-quick:")
    assert resolved.name == "cifar10-quick"


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.metadata["rare"]])
def test_a_key_of_recipe_files_is_told_from_a_flag(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    assert flag not in FLAGS
    assert name in (TRAIN.epilog or "")
    with pytest.raises(BadRequest, match=rf"'{flag}' is not a flag: set {name} = "):
        TRAIN.parse(["photos", flag, "1"])
