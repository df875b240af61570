"""A trained model that is ready to use, from a run directory or an export.

Invariants: everything that turns an image into an answer (weights, classes, preprocessing) comes
from the checkpoint, never from the packed set. Nothing in the directory is trusted: types and
ranges are checked before use, and code from it runs only with the user's consent. Arithmetic,
memory layout and precision are those of the run's own evaluation, so its figures come out again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker.data.images.encode import Storage
from stoker.data.index.description import class_trouble
from stoker.errors import BadRequest, StokerError
from stoker.recipe.model_file import ModelCode, function_of, is_own, read_code
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import recorded_recipe
from stoker.run.directory import Run
from stoker.run.kinds import Field, Required, is_count, is_number, list_of, misfit
from stoker.run.model_code import TRUST, code_of_run, named_code
from stoker.survive.checkpoint import Tensors, read_weights
from stoker.survive.manifest import checkpoint_folder, unreadable
from stoker.text import shown
from stoker.train.device import memory_format, set_arithmetic
from stoker.train.model.build import (
    Normalise,
    build_model,
    check_image_sizes,
    parameters_at_most,
)
from stoker.train.model.names import image_sizes
from stoker.train.model.own_code import trust
from stoker.train.model.weight_places import CONFIG
from stoker.train.model_input import MakeInput, input_maker
from stoker.train.passes import forward
from stoker.use.exported.files import CODE, GRAPH, ExportFiles, is_export, open_export
from stoker.use.exported.onnx_model import OnnxModel

TRIES = 3
"""How often a checkpoint that is replaced while it is read is opened again."""
LARGEST_INPUT = 1 << 14
"""Pixels of the side of a model's input: a larger one in a manifest is a mistake."""


def is_colour(value: Any) -> bool:
    """Whether a value has a number for each of three colours."""
    return list_of(is_number)(value) and len(value) == 3


_INPUT = {
    "image_size": Field(lambda value: is_count(value) and value <= LARGEST_INPUT, Required),
    "crop_pct": Field(lambda value: is_number(value) and 0 < value <= 1, Required),
    "mean": Field(is_colour, Required),
    "std": Field(lambda value: is_colour(value) and min(value) > 0, Required),
}
"""What a manifest says of the model's input."""
EXPORTED_KEYS = ("model", "amp", "channels_last")
"""The keys of the recipe that an export holds: what decides how its model computes."""


@dataclass(frozen=True)
class Preprocessing:
    """How an image file becomes the input of a model: stored size, centre crop, normalisation."""

    image_size: int
    crop_pct: float
    normalise: Normalise
    storage: Storage
    """How the training set was stored. Other images are shrunk to the same limit first."""


@dataclass(frozen=True)
class CodeConsent:
    """Which code of a model of the user's own may run: the one in a run or an export, or the one in
    a file of the user's that has the same text."""

    trusted: bool = False
    file: str | None = None


NO_CODE = CodeConsent()


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode on its device, its classes, and how it is fed."""

    model: nn.Module
    classes: list[str]
    preprocessing: Preprocessing
    recipe: Recipe
    device: torch.device
    origin: str
    """Where the weights come from, for messages."""
    facts: Mapping[str, Any]
    """The manifest of the checkpoint, or what an export says of itself."""
    to_input: MakeInput

    @property
    def amp(self) -> str:
        """The precision of evaluation, as in training: a CPU evaluates in 32 bits."""
        return self.recipe.amp if self.device.type == "cuda" else "off"

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """The logits, in 32 bits, of images as bytes on the device: count x height x width x 3."""
        return forward(self.model, self.to_input(images, None), self.amp).float()


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from, and what is said of it there."""

    file: Path
    """The manifest of a checkpoint, or the config.json of an export."""
    facts: Mapping[str, Any]
    origin: str

    def classes(self) -> list[str]:
        return classes_of(self.facts, self.file)

    def preprocessing(self) -> Preprocessing:
        return preprocessing_of(self.facts, self.file)


def open_classifier(
    path: Path, device: torch.device, checkpoint: str = "best", consent: CodeConsent = NO_CODE
) -> Classifier:
    """The model in a run directory or an export. `checkpoint` is best, last or a checkpoint's name.
    Raises BadRequest where there is none, StokerError where it is damaged."""
    run = Run(path)
    if run.exists:
        trust(code_of_run(run, consent.file, trusted=consent.trusted))
        return from_run(run, device, checkpoint)
    if is_export(path):
        if checkpoint != "best":
            raise BadRequest(f"{shown(str(path))} is an export and has no other checkpoints")
        return from_export(path, device, consent)
    raise BadRequest(
        f"{shown(str(path))} is not a run (no run.json), and not an export by Stoker (no {CONFIG} "
        "with a 'stoker' in it)"
    )


def from_run(run: Run, device: torch.device, checkpoint: str) -> Classifier:
    """The model of a run's checkpoint. Raises as `open_classifier` does."""
    folder, weights, manifest = newest_weights(run.path, checkpoint)
    recipe = recorded_recipe(run.values, f"{run.path / 'run.json'}")
    # The checkpoint's weights replace what these keys would load.
    recipe = replace(recipe, pretrained=False)
    source = ModelSource(
        folder / "manifest.json", manifest, f"{run.path}, checkpoint {folder.name}"
    )
    return with_weights(weights, recipe, source, device)


def newest_weights(run_path: Path, checkpoint: str) -> tuple[Path, Tensors, dict[str, Any]]:
    """The folder of a checkpoint, its weights and its manifest. A run that trains may replace the
    checkpoint while it is read: then those of the newer one. Raises as `open_classifier` does."""
    for left in reversed(range(TRIES)):
        folder = checkpoint_folder(run_path, checkpoint)
        try:
            return folder, *read_weights(folder)
        except (StokerError, OSError) as error:
            if left and checkpoint_folder(run_path, checkpoint) != folder:
                continue
            if isinstance(error, OSError):
                raise unreadable(folder, error) from error
            raise
    raise AssertionError


def from_export(path: Path, device: torch.device, consent: CodeConsent) -> Classifier:
    """The model of an export: its weights, or its ONNX graph where it has none. A graph computes on
    the CPU, whatever the device. Raises as `open_classifier` does."""
    export = open_export(path)
    source = ModelSource(path / CONFIG, export.facts, str(path))
    size = source.preprocessing().image_size
    values = {name: export.facts.get(name) for name in EXPORTED_KEYS}
    values |= {"image_size": size, "model_code": export.facts.get("model_code", "")}
    recipe = recorded_recipe(values, f"{source.file}")
    if export.has_weights:
        trust(code_of_export(export, recipe, consent))
        return with_weights(export.weights(), recipe, source, device)
    classes = source.classes()
    model = OnnxModel(export.read(GRAPH), size, len(classes), str(path / GRAPH)).eval()
    return Classifier(
        *(model, classes, source.preprocessing(), recipe, torch.device("cpu")),
        *(source.origin, source.facts),
        to_input=lambda images, mix: images,  # the graph normalises them itself
    )


def code_of_export(export: ExportFiles, recipe: Recipe, consent: CodeConsent) -> ModelCode | None:
    """The code of an exported model of the user's own; None for other models. Raises BadRequest
    where it may not be run, StokerError where it is not the export's."""
    if not is_own(recipe.model):
        return None
    file = export.path / CODE
    if CODE not in export.facts["files"]:
        raise StokerError(f"{export.path / CONFIG} is damaged: it lists no {CODE}")
    export.read(CODE)  # checks its hash
    code = read_code(file, function_of(recipe.model))
    if code.digest != recipe.model_code:
        raise StokerError(f"{file} is not the code of this model")
    if consent.file is not None and named_code(consent.file, recipe.model).digest == code.digest:
        return code
    if not consent.trusted:
        raise BadRequest(
            f"{shown(str(export.path))} has code of its own, and using it runs {shown(str(file))}: "
            f"read that file, then add {TRUST}"
        )
    return code


def with_weights(
    weights: Tensors, recipe: Recipe, source: ModelSource, device: torch.device
) -> Classifier:
    """The model of a recipe with these weights. Raises as `open_classifier` does."""
    classes, preprocessing = source.classes(), source.preprocessing()
    set_arithmetic(recipe)
    count = sum(tensor.numel() for tensor in weights.values())
    with parameters_at_most(2 * count, f"{source.file.parent} holds the weights of another model"):
        model, _ = build_model(recipe, len(classes))
    load_exactly(model, weights, source.file.parent)
    if preprocessing.image_size < image_sizes(recipe)[0]:  # training has tried the others
        smaller = replace(recipe, image_size=preprocessing.image_size, phases=())
        try:
            check_image_sizes(model, smaller, len(classes))
        except BadRequest as error:
            raise StokerError(f"{source.file} is damaged: {error}") from error
    model = model.to(device=device, memory_format=memory_format(recipe))  # type: ignore[call-overload]
    model.eval().requires_grad_(False)
    to_input = input_maker(preprocessing.normalise, device, recipe.channels_last, recipe.amp)
    return Classifier(
        *(model, classes, preprocessing, recipe, device, source.origin, source.facts),
        to_input=to_input,
    )


def classes_of(manifest: Mapping[str, Any], file: Path) -> list[str]:
    """The class names in a manifest. Raises StokerError where they cannot be right."""
    classes = manifest.get("classes")
    if trouble := class_trouble(classes):
        raise StokerError(f"{file} is damaged: {trouble}")
    assert isinstance(classes, list)
    return classes


def preprocessing_of(manifest: Mapping[str, Any], file: Path) -> Preprocessing:
    """How images are prepared, from a manifest. Raises StokerError where that cannot be right."""
    given = manifest.get("input")
    wrong = misfit(given, _INPUT) if isinstance(given, dict) else "input"
    if wrong or not isinstance(given, dict):
        raise StokerError(f"{file} is damaged: its '{wrong}' is wrong")
    normalise = Normalise(tuple(given["mean"]), tuple(given["std"]))
    storage = storage_of(manifest.get("storage"), file)
    return Preprocessing(given["image_size"], float(given["crop_pct"]), normalise, storage)


def storage_of(recorded: object, file: Path) -> Storage:
    """How the training set was stored; the default of packing where an older version did not
    record it. Raises StokerError where that cannot be right."""
    if recorded is None:
        return Storage()
    types = {spec.name: type(spec.default) for spec in fields(Storage)}
    if isinstance(recorded, dict):
        values = {name: value for name, value in recorded.items() if name in types}
        if all(type(value) is types[name] for name, value in values.items()):
            try:
                storage = Storage(**values)
                storage.check()
                return storage
            except BadRequest:
                pass
    raise StokerError(f"{file} is damaged: its 'storage' is wrong")


def load_exactly(model: nn.Module, weights: Tensors, origin: Path) -> None:
    """Give a model these weights. Raises StokerError where they are those of another model, or
    hold numbers that are not finite."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != shapes:
        raise StokerError(f"{origin} holds the weights of another model")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not math.isfinite(float(tensor.sum(dtype=torch.float64))):
            raise StokerError(f"{origin}: {shown(name)} holds numbers that are not finite")
    model.load_state_dict(weights)
