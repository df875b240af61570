"""The weights that a run starts from, and how they fit its model.

Invariants: either every tensor of the model's body is taken, or nothing is and BadRequest says why.
The head is taken where its classes are those of this set, row by row by their names; else it starts
at zero, so that the first loss is that of guessing: weights drawn for a head may be so large that
the first steps spoil the body. All that is taken is finite. The recipe decides the image size; the
weights decide mean and standard deviation of the pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker.commit import sha256_file
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.text import plural, shown
from stoker.train.model.build import Normalise, build_model, build_timm, check_image_sizes
from stoker.train.model.freeze import listed, plan_freeze
from stoker.train.model.layers import head_modules, is_inside, last_layers
from stoker.train.model.names import image_sizes
from stoker.train.model.weight_files import plain_name, read_tensors
from stoker.train.model.weight_places import InputFacts, WeightPlace, find_weights
from stoker.train.model.weights import weights_file

OPTIONAL = "num_batches_tracked"
"""A counter that old files do not have."""
FIRST_RULES, RULES = 1, 2
"""How a run starts from weights, on record in it. By the first rules, which runs without a record
follow, a new head was drawn from the seed, and BatchNorm took new statistics after a thaw."""
STRANGE_SHARE = 0.05
"""With more tensors than this share that the model does not have, it is another model's file."""


@dataclass(frozen=True)
class Start:
    """What a run started from."""

    line: str
    """Which tensors were taken, which were not and why."""
    source: str
    sha256: str
    input: InputFacts = field(default_factory=InputFacts)
    rules: int = RULES

    def record(self) -> dict[str, Any]:
        """The start as run.json has it."""
        facts = {"line": self.line, "source": self.source, "sha256": self.sha256}
        return {**facts, "rules": self.rules, **asdict(self.input)}

    def note(self, recipe: Recipe) -> list[str]:
        """A note where the weights were trained on images of another size than the recipe's."""
        theirs, ours, crop = self.input.image_size, image_sizes(recipe)[-1], self.input.crop_pct
        if theirs in (None, ours):
            return []
        crop_flag = f" --crop-pct {crop:g}" if crop not in (None, recipe.crop_pct) else ""
        return [
            f"these weights were trained on images of {theirs} px, and this recipe has {ours} px: "
            f"--image-size {theirs}{crop_flag} would match"
        ]


def check_start(recipe: Recipe, model: nn.Module) -> None:
    """Raise BadRequest where the weights of a recipe do not fit its model, of any classes."""
    plan_freeze(recipe, model)
    load_start(recipe, model, None)


def try_model(recipe: Recipe) -> None:
    """Build the model for two classes and check it, before minutes are spent on packing. Raises
    BadRequest as `build_model`, `check_image_sizes` and `check_start` do."""
    model = build_model(recipe, 2)[0]
    check_image_sizes(model, recipe, 2)
    check_start(recipe, model)


def normalise_of(facts: InputFacts, otherwise: Normalise) -> Normalise:
    """The mean and standard deviation of the weights, where they are known."""
    if facts.mean is None or facts.std is None:
        return otherwise
    return Normalise(facts.mean, facts.std)


def load_start(
    recipe: Recipe, model: nn.Module, classes: list[str] | None, rules: int = RULES
) -> Start | None:
    """Load the weights that the recipe names into a model for these classes (None: for two, whose
    names are not known yet); None where it names none. Raises BadRequest where they do not fit."""
    if recipe.pretrained:
        count = 2 if classes is None else len(classes)
        start, new = load_pretrained(recipe, model, count)
    elif recipe.weights:
        start, new = load_weights(recipe, model, classes)
    else:
        return None
    answers = [parameter for name, parameter in last_layers(model) if name in new]
    if rules == FIRST_RULES or not answers:
        return replace(start, rules=rules)
    with torch.no_grad():
        for parameter in answers:
            parameter.zero_()
    return replace(start, line=f"{start.line}; the new head starts at zero")


def load_pretrained(recipe: Recipe, model: nn.Module, classes: int) -> tuple[Start, list[str]]:
    """Load timm's weights; returns which tensors are new. timm converts the weights and replaces
    the head, in a model of its own."""
    timm_model, _ = build_timm(recipe, classes, pretrained=True)
    model.load_state_dict(timm_model.state_dict())
    facts: Mapping[str, Any] = timm_model.pretrained_cfg  # type: ignore[assignment]
    before, heads = facts.get("num_classes"), head_modules(model)
    names = [name for name in model.state_dict() if is_inside(name, heads)]
    new = names if before != classes else []
    tag = f".{facts['tag']}" if facts.get("tag") else ""
    source = f"timm's {facts.get('architecture', recipe.model)}{tag}"
    file = weights_file(recipe.model)
    reason = f"{plural(classes, 'class')} instead of {before:,}" if before else "another head"
    start = Start(
        line_of(len(model.state_dict()), source, new, reason),
        source,
        sha256_file(Path(file)) if file else "",
        InputFacts.of({key: facts.get(key) for key in ("mean", "std", "input_size", "crop_pct")}),
    )
    return start, new


def load_weights(
    recipe: Recipe, model: nn.Module, classes: list[str] | None
) -> tuple[Start, list[str]]:
    """Load the weights of `--weights` into a model; returns which tensors are new. Raises
    BadRequest where they do not fit."""
    place = find_weights(recipe.weights)
    file = read_tensors(place)
    own = model.state_dict()
    weights: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        weights.setdefault(plain_name(name, own), tensor)
    heads = head_modules(model)
    body = {name: tensor for name, tensor in own.items() if not is_inside(name, heads)}
    theirs = place.model or file.model
    renamed = theirs in (None, recipe.model) and 2 * len(body.keys() & weights) < len(body)
    if renamed:
        weights = in_order(recipe, own, weights, place, heads)
    require_fit(recipe, body, weights, place, theirs, heads)
    head = {name: own[name] for name in own if name not in body}
    order, reason = head_order(head, weights, place.classes, classes)
    chosen = {name: weights[name] for name in body if name in weights}
    new = [name for name in body if name not in weights]
    if order is None:
        new += head
    else:
        chosen |= {name: weights[name][order] for name in head}
    require_numbers(chosen, own, place)
    with torch.no_grad():
        for name, tensor in chosen.items():
            own[name].copy_(tensor)
    unused = [name for name in weights if name not in own]
    source = f"{place.name}, matched in order under other names" if renamed else place.name
    line = line_of(len(own), source, new, reason, unused)
    return Start(line, place.name, file.sha256, place.input), new


def in_order(
    recipe: Recipe,
    own: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    place: WeightPlace,
    heads: tuple[str, ...],
) -> dict[str, Tensor]:
    """The weights of another implementation under the model's names: tensor by tensor in order,
    where shapes and last parts of names (weight, running_mean) agree; the head may have other
    classes, or be missing. Raises BadRequest at the first pair that differs."""
    counted = any(name.endswith(OPTIONAL) for name in weights)
    ours = [name for name in own if counted or not name.endswith(OPTIONAL)]
    renamed: dict[str, Tensor] = {}
    for number, (name, other) in enumerate(zip_longest(ours, weights), 1):
        if name and other:
            shapes, is_head = (own[name].shape, weights[other].shape), is_inside(name, heads)
            alike = shapes[0][is_head:] == shapes[1][is_head:]
            if alike and name.rpartition(".")[2] == other.rpartition(".")[2]:
                renamed[name] = weights[other]
                continue
        elif name and is_inside(name, heads):
            continue
        here, there = (
            f"{shown(each)} {tuple(tensors[each].shape)}" if each else "nothing"
            for each, tensors in ((name, own), (other, weights))
        )
        model = shown(recipe.model)
        raise BadRequest(
            f"--weights {place.name}: its names are not those of {model}, and matched in order the "
            f"tensors differ from number {number} on: {there} in the file, {here} in {model}; "
            "choose the --model that they were made with"
        )
    return renamed


def require_fit(
    recipe: Recipe,
    body: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    place: WeightPlace,
    model: str | None,
    heads: tuple[str, ...],
) -> None:
    """Raise BadRequest where weights are not those of the model's body."""
    ours = shown(recipe.model)
    missing = [name for name in body if name not in weights and not name.endswith(OPTIONAL)]
    wrong = [n for n in body if n in weights and weights[n].shape != body[n].shape]
    strange = [name for name in weights if name not in body and not is_inside(name, heads)]
    advice = "choose the --model that they were made with"
    if model and model != recipe.model:
        advice = f"use --model {shown(model)}"
    whose = f"these are weights of {shown(model)}" if model else "these are another model's weights"
    if len(missing) + len(wrong) > len(body) / 2:
        fitting = sum(name in weights for name in body) - len(wrong)
        text = f"{fitting} of the {len(body)} tensors of {ours} before its head fit"
    elif wrong:
        theirs, expected = (tuple(table[wrong[0]].shape) for table in (weights, body))
        text = f"{wrong[0]} has the shape {theirs}, and {ours} needs {expected}"
    elif missing:
        text = f"{plural(len(missing), 'tensor')} of {ours} missing, such as {missing[0]}"
    elif len(strange) > STRANGE_SHARE * len(body):
        text = f"{ours} does not have {plural(len(strange), 'tensor')} of it, such as " + shown(
            strange[0]
        )
    else:
        return
    raise BadRequest(f"--weights {place.name}: {text}; {whose}: {advice}")


def head_order(
    head: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    theirs: list[str] | None,
    ours: list[str] | None,
) -> tuple[list[int] | None, str]:
    """Which row of the weights' head is whose, class by class, and a phrase about it. None for a
    new head, with the reason."""
    rows = next((len(weights[name]) for name in head if name in weights and weights[name].ndim), 0)
    if not rows:
        return None, "the file has none"
    if ours is None:
        return None, "the classes are not known yet"
    if rows != len(ours):
        return None, f"{plural(len(ours), 'class')} instead of {rows:,}"
    if any(n not in weights or weights[n].shape != head[n].shape for n in head):
        return None, "another head"
    if theirs is None or len(theirs) != rows:
        return list(range(rows)), "the head is taken as it is: its class names are not known"
    if set(theirs) != set(ours):
        return None, "other class names"
    places = {name: place for place, name in enumerate(theirs)}
    order = [places[name] for name in ours]
    return order, "" if theirs == ours else "the head's rows are in the order of this set's classes"


def require_numbers(
    chosen: Mapping[str, Tensor], own: Mapping[str, Tensor], place: WeightPlace
) -> None:
    """Raise BadRequest where a tensor to be taken has another kind of number, or one that is not
    finite."""
    for name, tensor in chosen.items():
        plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
        if not plain or tensor.is_floating_point() != own[name].is_floating_point():
            raise BadRequest(
                f"--weights {place.name}: {name} has numbers of the type {tensor.dtype}, and the "
                f"model needs {own[name].dtype}: save the weights as floats"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise BadRequest(
                f"--weights {place.name}: {name} has values that are not finite: take an earlier "
                "checkpoint"
            )


def line_of(
    total: int, source: str, new: list[str], reason: str, unused: list[str] | None = None
) -> str:
    """Which tensors were taken, which were not and why, in one line."""
    line = f"weights: {total - len(new)} of {plural(total, 'tensor')} from {source}"
    if new:
        line += f"; new: {listed(new)}" + (f" ({reason})" if reason else "")
    elif reason:
        line += f"; {reason}"
    if unused:
        line += f"; not used: {listed([shown(name) for name in unused])}"
    return line
