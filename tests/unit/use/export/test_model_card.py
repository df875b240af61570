"""A card says what was measured; no name in it becomes markup, code or YAML."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exports import code_blocks
from golden import check_golden
from stoker.data.images.encode import Storage
from stoker.train.model.build import Normalise
from stoker.use.classifier import Preprocessing
from stoker.use.export.agreement import Difference
from stoker.use.export.figures import ClassFigure, EvaluationFigures
from stoker.use.export.model_card import CardFacts, escaped, model_card

FILE = {"bytes": 44_700_000, "sha256": "0123456789abcdef" * 4}
FACTS: dict[str, Any] = {
    "version": "0.1.0",
    "step": 1234,
    "fingerprint": "37127d288a310ce2",
    "recipe_digest": "59c7be76bf",
    "files": {"model.safetensors": FILE, "model.pt2": FILE, "model.onnx": FILE},
}
SMALL = Difference(1.5e-6, 2e-7, 0, 9.0)
CARD = CardFacts(
    model="resnet18",
    is_timm=True,
    classes=[f"class_{number}" for number in range(25)],
    preprocessing=Preprocessing(64, 0.875, Normalise(), Storage()),
    recipe="first-look",
    values={"epochs": 20, "batch_size": 64, "optimizer": "sgd", "seed": 0, "pretrained": True},
    data="photos-packed",
    facts=FACTS,
    training_images=1080,
    figures=EvaluationFigures(120, 108, 119, 0.875, (ClassFigure("class_3", 5, 2),)),
    differences={"model.pt2": replace(SMALL, probabilities=0.0), "model.onnx": SMALL},
    checked_on="64 validation images",
    pretrained_license="apache-2.0",
)
WEIGHTS = FACTS | {"files": {"model.safetensors": FILE}}
OWN = replace(
    CARD,
    model="resnet9_w16",
    is_timm=False,
    classes=["cat", "dog"],
    preprocessing=Preprocessing(32, 1.0, Normalise(), Storage(codec="raw", min_side=32)),
    values={"epochs": 4, "batch_size": 512, "optimizer": "adamw", "seed": 7, "ema": True},
    facts=WEIGHTS,
    figures=None,
    differences={},
    checked_on="",
)
HOSTILE = [
    "<script>alert(1)</script>",
    "[a](javascript:alert(1))",
    "![x](http://example.com/x.png)",
    "a\n---\nlicense: mit\n---\n# b",
    "```python\nimport os\n```",
    "| a | b |",
    "`code`",
    "*a* _b_ __c__ ~~d~~ $e$",
    "www.example.com http://example.com",
    "&lt;b&gt; &amp;",
    "\x1b[31mred\u202egnp.exe",
    "<!-- a -->",
    "\\",
    "\udcff",
]


def test_golden_card_of_a_timm_model() -> None:
    check_golden("model_card_timm", model_card(CARD).splitlines())


def test_golden_card_of_our_own_model() -> None:
    check_golden("model_card_own", model_card(OWN).splitlines())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_a_name(name: str) -> None:
    hostile = model_card(
        replace(
            *(CARD,),
            classes=[name, "dog"],
            data=name,
            recipe=name,
            model=name,
            figures=replace(CARD.figures, worst=(ClassFigure(name, 5, 1),)),  # type: ignore[type-var]
            values={**CARD.values, "optimizer": name, "seed": name},
            facts=FACTS | {"fingerprint": name, "recipe_digest": name},
            pretrained_license=name,
        )
    )
    plain = model_card(replace(CARD, classes=["cat", "dog"]))
    # The same lines, headings, tables, code and front matter, whatever the name.
    assert len(hostile.splitlines()) == len(plain.splitlines())
    assert code_blocks(hostile) == code_blocks(plain)
    assert hostile.split("---\n")[:2] == plain.split("---\n")[:2]
    assert not re.search(r"<[a-zA-Z/!]", hostile)
    assert not [c for c in hostile if not c.isprintable() and c != "\n"]


@given(st.text())
def test_escaped_text_has_no_markup(text: str) -> None:
    result = escaped(text)
    assert result.isprintable()
    without = re.sub(r"\\[!-/:-@\[-`{-~]|&#\d+;|&amp;", "", result)
    assert not re.search(r"[\\`*{}\[\]()#!|~$:@<>\"']", without)


def test_the_front_matter_is_plain_yaml() -> None:
    front = model_card(CARD).split("---\n")[1].splitlines()
    pairs = dict(line.split(": ") for line in front if ": " in line)
    assert pairs["library_name"] == "timm"
    assert pairs["pipeline_tag"] == "image-classification"
    assert all(re.fullmatch(r"[a-z_]+:( [a-z-]+)?|- [a-z-]+", line) for line in front)


def test_twenty_classes_are_named() -> None:
    text = model_card(CARD)
    assert "class_19 and 5 more" in text
    assert "class_20" not in text
