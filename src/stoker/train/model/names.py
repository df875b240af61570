"""The names of models, checked without importing torch or timm, which takes seconds.

Invariant: what is refused here cannot be built. What passes may still be refused when it is built.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from stoker.errors import BadRequest
from stoker.recipe.model_file import is_own
from stoker.recipe.recipe import Recipe
from stoker.text import shown

OWN = re.compile(r"resnet9(?:_w([1-9]\d{0,3}))?")
"""Our own model; the number is the width of its first layer."""
LEAST_OWN_SIZE = 8
"""Side of the smallest image that our own model takes: it halves the image three times."""
_REGISTERED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)
_RENAMED = re.compile(r"register_model_deprecations\(__name__, \{(.*?)\}\)", re.DOTALL)
_RENAMED_KEY = re.compile(r"^\s*['\"](\w+)['\"]\s*:", re.MULTILINE)


def image_sizes(recipe: Recipe) -> list[int]:
    """The sides of the images that a recipe trains on, each once."""
    return sorted({phase.image_size for phase in recipe.phases} or {recipe.image_size})


def check_model(recipe: Recipe) -> None:
    """Raise BadRequest for a model that does not exist, or cannot take what the recipe says."""
    name = recipe.model
    own = is_own(name)
    if not own and not OWN.fullmatch(name):
        check_timm_name(name)
    elif recipe.pretrained:
        raise BadRequest(f"{name} has no pre-trained weights: drop --pretrained")
    elif not own and (size := image_sizes(recipe)[0]) < LEAST_OWN_SIZE:
        raise BadRequest(
            f"{name} does not take images of {size} px: use --image-size {LEAST_OWN_SIZE} or more"
        )


def check_fine_tuning(recipe: Recipe) -> None:
    """Raise BadRequest where frozen weights would be random ones, or nothing is frozen."""
    if recipe.freeze and not (recipe.pretrained or recipe.weights):
        raise BadRequest(
            f"--freeze {shown(recipe.freeze)} (set by the recipe finetune, for example) keeps "
            "weights as they are, and these would be random: add --pretrained for timm's weights, "
            "or --weights FILE for others"
        )
    if recipe.freeze_epochs and not recipe.freeze:
        raise BadRequest(
            f"freeze_epochs = {recipe.freeze_epochs:g} says until when, but not what: add --freeze "
            "body, or drop --freeze-epochs"
        )


def check_timm_name(name: str) -> None:
    """Raise BadRequest where timm is missing or has no such model."""
    spec = find_spec("timm")
    if spec is None:
        raise BadRequest(
            f"model '{shown(name)}' comes from timm, which is not installed: "
            "pip install timm, or use --model resnet9"
        )
    current, renamed = timm_names(*(spec.submodule_search_locations or ()))
    # timm's files may look different one day: then timm itself decides, when the model is built.
    if current and name.partition(".")[0] not in current | renamed:
        near = difflib.get_close_matches(name.lower(), [*current, "resnet9", "resnet9_w16"], n=3)
        names = "' or '".join(near)
        hint = f": did you mean '{names}'?" if near else ""
        raise BadRequest(f"timm has no model called '{shown(name)}'{hint}")


@cache
def timm_names(*folders: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names of timm's models, and the old names that it still accepts, from its files."""
    current: set[str] = set()
    renamed: set[str] = set()
    for folder in folders:
        for file in Path(folder, "models").glob("*.py"):
            text = file.read_text(encoding="utf-8", errors="replace")
            current.update(_REGISTERED.findall(text))
            for table in _RENAMED.findall(text):
                renamed.update(_RENAMED_KEY.findall(table))
    return frozenset(current), frozenset(renamed)
