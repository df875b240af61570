"""Settings of other tools lead to things that exist, and messages say what to do instead."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from pages import ROOT, read_page
from stoker.cli import VERBS
from stoker.cli.flags import Parser
from stoker.cli.train import parser as train_parser
from stoker.errors import BadRequest
from stoker.recipe.other_tools import (
    GENERAL,
    ForeignSetting,
    OtherTool,
    aliases,
    foreign_answer,
    other_tools,
)
from stoker.recipe.recipe import SPECS, Recipe
from stoker.recipe.resolve import parse_toml

TRAIN = train_parser()
ROWS = [(tool, row) for tool in other_tools() for row in tool.rows]
REFUSED = re.compile(r"not (needed here|offered)\b")


def row_name(value: OtherTool | ForeignSetting) -> str:
    return value.name if isinstance(value, OtherTool) else value.theirs


def refusal(*words: str, parser: Parser = TRAIN) -> str:
    with pytest.raises(BadRequest) as caught:
        parser.parse(["photos", *words])
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_tool_says_what_was_checked() -> None:
    for tool in other_tools():
        assert re.fullmatch(r"\d+\.\d+\.\d+", tool.version) or tool.name == "other scripts"
        assert tool.program and tool.checked
        assert len(tool.rows) > 30


@pytest.mark.parametrize(("tool", "row"), ROWS, ids=row_name)
def test_what_a_row_leads_to_exists(tool: OtherTool, row: ForeignSetting) -> None:
    assert bool(row.ours) != bool(REFUSED.match(row.note))
    assert len(row.answer(as_flag=True)) < 200
    if row.ours.startswith("stoker "):
        _, verb, *words = row.ours.split()
        assert verb in VERBS
        known = import_module(f"stoker.cli.{verb.replace('-', '_')}").parser()
    else:
        assert not row.ours or row.ours in SPECS or row.ours in TRAIN._option_string_actions
        words, known = [], TRAIN
    flags = re.findall(r"(?<!\S)--[a-z-]+", " ".join(words)) + re.findall(
        r"(?<![\w-])--(?!epochs 30,)[a-z][a-z-]+", row.note if known is TRAIN else ""
    )
    named_in_notes = {"--memory", "--to"}  # of other verbs
    assert not {flag for flag in flags if flag not in known._option_string_actions} - named_in_notes


def test_no_tool_has_a_setting_twice() -> None:
    for tool in other_tools():
        spellings = [each for row in tool.rows for each in row.theirs.split(", ")]
        alone = [each for each in spellings if "(" not in each and ")" not in each]
        assert len(alone) == len(set(alone)), tool.name


def test_general_names_are_of_no_tool() -> None:
    names = {name for tool in other_tools() for row in tool.rows for name in row.names}
    assert not names & GENERAL.keys()
    assert GENERAL.items() <= aliases().items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--opt", "sgd"],
            "'--opt' comes from timm and torchvision: Stoker calls it '--optimizer'",
        ),
        (["--opt=sgd"], "'--opt' comes from timm and torchvision: Stoker calls it '--optimizer'"),
        (
            ["-b", "64"],
            "'-b' comes from timm and torchvision: Stoker calls it '--batch-size' (there the "
            "images of one GPU, here of all ranks together)",
        ),
        (
            ["--resume", "last.pth"],
            "'--resume' comes from timm, torchvision and Ultralytics: not needed here: the same "
            "command resumes",
        ),
        (
            ["--kd-model-name", "vit"],
            "'--kd-model-name' comes from timm: not offered: there is no distillation",
        ),
        (
            ["--devices", "2"],
            "'--devices' comes from Lightning: Stoker calls it '--ranks' (one process for each "
            "GPU)",
        ),
        (
            ["--test-only"],
            "'--test-only' comes from torchvision: use 'stoker evaluate RUN'",
        ),
        (
            ["--multi_scale", "0.5"],
            "'--multi_scale' comes from Ultralytics: Stoker calls it 'phases', in a recipe file "
            "(the image size by epoch)",
        ),
        (
            ["--no-auto-resume"],
            "'--no-auto-resume' comes from other scripts: not needed here: the same command "
            "resumes; another --run begins from nothing",
        ),
        (
            ["--log-dir", "logs"],
            "'--log-dir' comes from other scripts: Stoker calls it '--run' (the folder of the run: "
            "checkpoints, events and report)",
        ),
        (["-a", "resnet50"], "'-a' comes from other scripts: Stoker calls it '--model'"),
        (
            ["-p", "10"],
            "'-p' comes from other scripts: Stoker calls it '--log-interval' (seconds, not "
            "batches; every step is recorded in any case)",
        ),
        (
            ["--fp16"],
            "'--fp16' comes from other scripts: Stoker calls it '--amp' (--amp fp16 or --amp bf16)",
        ),
        (
            ["--val-split", "0.2"],
            "'--val-split' comes from timm: use 'stoker pack SOURCE --val-share 0.1' (holds out a "
            "tenth of each class; the folders train and val, or a column split, say it too)",
        ),
        (["imgsz=224"], "'imgsz' comes from Ultralytics: Stoker calls it '--image-size'"),
        (
            ["--trainer.gradient_clip_val", "1"],
            "'--trainer.gradient_clip_val' comes from Lightning: Stoker calls it '--clip-grad'",
        ),
    ],
)
def test_a_message_for_each_kind_of_row(words: list[str], message: str) -> None:
    assert refusal(*words) == message


TYPED = """--auto-resume --no-auto-resume --checkpoint-dir --log-dir --fp16 --gpus --use-ffcv
--ffcv-dir --progressive-resize --use-ema --gradient-clip --target-accuracy --num-workers --sz
-a -p -b -j --dist-url --num-examples --num-classes --num-epochs --data-train --data-val --out
--pretrained-model --resume"""


@pytest.mark.parametrize("word", TYPED.split())
def test_flags_of_articles_have_an_answer(word: str) -> None:
    """Those of five articles on training ImageNet, Places and Caltech."""
    message = refusal(word, "1")
    assert "comes from" in message or "did you mean" in message


def test_a_word_that_stands_alone_is_no_setting() -> None:
    assert refusal("resume").startswith("unknown word 'resume'")


def test_where_ours_does_not_exist_nothing_is_claimed() -> None:
    config = import_module("stoker.cli.show_config").parser()
    assert "Stoker calls it '--optimizer'" in refusal("--opt", "x", parser=config)
    assert "unknown flag '--devices'" in refusal("--devices", "2", parser=config)  # no --ranks
    predict = import_module("stoker.cli.predict").parser()
    message = refusal("new.jpg", "--batch", "2", parser=predict)
    assert "did you mean '--batch-size'?" in message  # another meaning than in training


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("devices", "comes from Lightning: use the flag '--ranks' (one process for each GPU)"),
        ("test_only", "comes from torchvision: use 'stoker evaluate RUN'"),
        ("sync_bn", "comes from timm and torchvision: not offered: BatchNorm sees"),
        ("optimizer", None),
        ("zzz", None),
    ],
)
def test_keys_of_a_recipe_file(word: str, answer: str | None) -> None:
    given = foreign_answer(word, SPECS, as_flag=False)
    assert given == answer or (given and answer and given.startswith(answer))


@pytest.mark.parametrize(
    "word",
    ["--opt\x1b[31m", "--" + "opt" * 10_000, "--" + "-" * 50_000, "--opt\n", "--öpt", "--.", "--'"],
)
def test_hostile_words_are_unknown(word: str) -> None:
    assert foreign_answer(word, SPECS, as_flag=True) is None
    assert "comes from" not in refusal(f"{word}=1")


def test_the_recipes_on_the_page_are_valid() -> None:
    page = read_page(ROOT / "docs" / "coming-from.md")
    recipes = [block for block in page.blocks if block.kind == "toml"]
    assert len(recipes) == 3
    for one in recipes:
        Recipe(**{key: value for key, (value, _) in parse_toml(one.text, one.title).items()})
