"""stoker show-config: every value with its origin, as a recipe file of the same meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from run_records import record
from stoker.cli import main
from stoker.errors import FINISHED
from stoker.recipe.recipe import SPECS
from stoker.recipe.resolve import preset_names, resolve, show_config
from stoker.run.directory import Run


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show-config", *words]) == FINISHED
    return capsys.readouterr().out


def line_of(key: str, text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
    return " ".join(line.split())


def digest_in(text: str) -> str:
    return text.splitlines()[-1].removeprefix("# digest ")


def test_every_key_is_there_once_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--model", "resnet50")
    for key in SPECS:
        if key != "phases":
            assert re.search("# (default|flag|recipe first-look:[0-9]+)$", line_of(key, text))


def test_a_first_look_names_the_recipe_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert line_of("epochs", shown(capsys)).startswith("epochs = 30 # recipe first-look:")


def test_origins_are_named_down_to_the_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("# mine\nepochs = 7\n\nbatch_size = 32\n")
    text = shown(capsys, "--recipe", str(mine), "--batch-size", "48", "--no-hflip")
    assert line_of("epochs", text) == f"epochs = 7 # {mine}:2"
    assert line_of("batch_size", text) == "batch_size = 48 # flag"
    assert line_of("hflip", text) == "hflip = false # flag"
    assert line_of("lr", text) == "lr = 0.0 # default"


def test_a_preset_is_an_origin(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--recipe", "cifar10-quick")
    assert line_of("epochs", text) == "epochs = 11 # recipe cifar10-quick:3"


FLAGS = [
    (),
    ("--model", 'odd"name\\ of é', "--lr", "1e-05", "--decay-epochs", "1,2.5", "--no-hflip"),
    ("--amp", "--threads", "7"),
    *[("--recipe", name) for name in preset_names()],
    ("--recipe", "imagenet-resnet50", "--epochs", "90", "--ema-decay", "0.99"),
]


@pytest.mark.parametrize("words", FLAGS, ids=" ".join)
def test_fed_back_it_is_the_same_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    first = shown(capsys, *words)
    again = tmp_path / "again.toml"
    again.write_text(first, encoding="utf-8")
    second = shown(capsys, "--recipe", str(again))
    assert len(digest_in(first)) == 10
    assert digest_in(second) == digest_in(first)
    assert resolve(str(again)).recipe.digest() == digest_in(first)


def test_the_digest_tells_what_shapes_a_run_from_what_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = digest_in(shown(capsys))
    assert digest_in(shown(capsys, "--threads", "7", "--log-interval", "1")) == plain
    assert digest_in(shown(capsys, "--epochs", "30")) == plain
    assert digest_in(shown(capsys, "--epochs", "31")) != plain


def test_of_a_run_it_is_what_the_run_was_begun_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    resolved = resolve("cifar10-quick", {"epochs": 5})
    run = Run(tmp_path / "run")
    run.create(record(digest=resolved.recipe.digest()), show_config(resolved))
    text = shown(capsys, str(run.path))
    assert line_of("epochs", text) == "epochs = 5 # flag"
    again = tmp_path / "again.toml"
    again.write_text(text, encoding="utf-8")
    assert resolve(str(again)).recipe.digest() == run.record["digest"]
