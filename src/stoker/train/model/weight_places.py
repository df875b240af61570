"""Where the weights of `--weights` are: a file, a run, a checkpoint or an exported model.

Invariants: nothing here needs torch, so a wrong path is answered at once. Everything that is read
comes from elsewhere: its types are checked, its sizes are bounded, and only files inside the named
folder are opened. What a place says about its model, classes and input may be absent.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.errors import BadRequest, StokerError
from stoker.host.plain_file import read_plain
from stoker.run.directory import Run
from stoker.survive.manifest import checkpoint_folder, evaluated_file, read_manifest
from stoker.text import one_line, shown

CONFIG = "config.json"
EXPORTED = ("model.safetensors", "pytorch_model.bin")
"""The files with weights that an exported folder may have, the preferred one first."""
LFS_POINTER = b"version https://git-lfs"
SIGNS_OF_HTML = (b"<!doctype", b"<html", b"<?xml", b"<head")


@dataclass(frozen=True)
class InputFacts:
    """How images become the input of a model; None for what is not known."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    image_size: int | None = None
    crop_pct: float | None = None

    @classmethod
    def of(cls, facts: object) -> InputFacts:
        """The facts in a configuration; those of a wrong type count as not known."""
        table = facts if isinstance(facts, dict) else {}
        size, crop = table.get("image_size"), table.get("crop_pct", 0)
        if isinstance(shape := table.get("input_size"), list | tuple) and len(shape) == 3:
            size = shape[-1]
        mean, std = three_numbers(table.get("mean")), three_numbers(table.get("std"))
        known = mean is not None and std is not None and min(std) > 0
        return cls(
            mean if known else None,
            std if known else None,
            size if type(size) is int and 0 < size <= 1 << 16 else None,
            float(crop) if is_number(crop) and 0 < crop <= 1 else None,
        )


@dataclass(frozen=True)
class WeightPlace:
    """A file with weights, and what its folder says about them."""

    name: str
    """What the user typed, printable."""
    file: Path
    sha256: str | None = None
    """The hash that the file must have; None where nothing says so."""
    model: str | None = None
    classes: list[str] | None = None
    """The names of the classes in the order of the head's rows."""
    input: InputFacts = field(default_factory=InputFacts)


def find_weights(text: str) -> WeightPlace:
    """The file behind `--weights`. Raises BadRequest where there are no weights."""
    path, name = Path(text), shown(text)
    try:
        if not path.is_dir():
            return check_file(WeightPlace(name, path))
        if (path / "run.json").exists():
            return check_file(weights_of_run(path, name))
        if (path / "manifest.json").exists():
            return check_file(weights_of_checkpoint(path, name))
        if (path / CONFIG).exists():
            return check_file(weights_of_export(path, name))
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise BadRequest(f"--weights {name} cannot be read: {one_line(reason)}") from error
    raise BadRequest(
        f"--weights {name} is a folder without weights: name a file (.safetensors, .pt, .pth), a "
        "run, or an exported model (config.json and model.safetensors)"
    )


def check_file(place: WeightPlace) -> WeightPlace:
    """The place, whose file may hold weights. Raises BadRequest where it cannot, and OSError."""
    name, file = place.name, place.file
    if not file.exists():
        raise BadRequest(
            f"--weights {name} does not exist: name a file, a run or an exported model; timm's own "
            "weights come with --pretrained"
        )
    if not file.is_file():
        raise BadRequest(f"--weights {name} is not a file: name one with weights")
    with file.open("rb") as opened:
        start = opened.read(512)
    if not start:
        raise BadRequest(f"--weights {name} is empty: copy or download it again")
    if start.startswith(LFS_POINTER):
        raise BadRequest(
            f"--weights {name} is a git-LFS pointer, not the weights: 'git lfs pull' gets them"
        )
    if start.lstrip().lower().startswith(SIGNS_OF_HTML):
        raise BadRequest(
            f"--weights {name} is a web page, not weights: download the file that it links to"
        )
    return place


def weights_of_run(path: Path, name: str) -> WeightPlace:
    """The best checkpoint of a run: its newest one where no best one is named."""
    record = Run(path).record
    try:
        folder = checkpoint_folder(path, "best")
    except BadRequest as error:
        raise BadRequest(f"--weights {name}: {error}") from error
    place = weights_of_checkpoint(folder, name)
    if place.classes is None:
        return WeightPlace(name, place.file, place.sha256, place.model, record["classes"])
    return place


def weights_of_checkpoint(folder: Path, name: str) -> WeightPlace:
    """The weights of a checkpoint: the moving average, where it has one."""
    try:
        manifest = read_manifest(folder)
    except BadRequest:
        raise
    except StokerError as error:
        raise BadRequest(f"--weights {name}: {error}") from error
    file = evaluated_file(manifest)
    model = manifest.get("model")
    return WeightPlace(
        name,
        folder / file,
        manifest["files"][file]["sha256"],
        model if isinstance(model, str) else None,
        class_names(manifest.get("classes")),
        InputFacts.of(manifest.get("input")),
    )


def weights_of_export(path: Path, name: str) -> WeightPlace:
    """The weights of an exported model, in the layout of timm's local folders."""
    try:
        config = config_of(path)
    except StokerError as error:
        raise BadRequest(f"--weights {name}: {error}") from error
    files = [path / file for file in EXPORTED if (path / file).exists()]
    if not files:
        raise BadRequest(f"--weights {name} has a {CONFIG}, but no {EXPORTED[0]}")
    model = config.get("architecture")
    stoker = config.get("stoker")
    own = stoker if isinstance(stoker, dict) else {}
    names = class_names(config.get("label_names")) or class_names(own.get("classes"))
    if isinstance(own.get("model"), str):
        model = own["model"]
    return WeightPlace(
        name,
        files[0],
        model=model if isinstance(model, str) else None,
        classes=names,
        input=InputFacts.of(config.get("pretrained_cfg")),
    )


def config_of(path: Path) -> dict[str, Any]:
    """The content of config.json. Raises OSError where there is none, StokerError where it is not
    a JSON object."""
    file = path / CONFIG
    try:
        data = read_plain(file)
    except ValueError as error:
        raise StokerError(f"{file} is damaged: {error}") from error
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StokerError(f"{file} is damaged: it is not JSON") from error
    if not isinstance(config, dict):
        raise StokerError(f"{file} is damaged: it is not a JSON object")
    return config


def class_names(value: object) -> list[str] | None:
    """A list of names, or a table of them by their numbers; None for anything else."""
    if isinstance(value, dict):
        value = [value.get(str(number)) for number in range(len(value))]
    known = isinstance(value, list) and value and all(isinstance(name, str) for name in value)
    return list(value) if known and len(set(value)) == len(value) else None  # type: ignore[call-overload, arg-type]


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def three_numbers(value: object) -> tuple[float, ...] | None:
    """Three finite numbers, one for each colour; None for anything else."""
    if isinstance(value, list | tuple) and len(value) == 3 and all(map(is_number, value)):
        return tuple(float(number) for number in value)
    return None
