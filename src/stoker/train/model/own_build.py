"""Builds a model of the user's own, and refuses in one line what cannot be trained or saved.

Invariants: the text and its function run with the seeds of the recipe set before each, so a model
is a function of its text and the recipe. Settings of the process that the text changes are put
back: the recipe decides them. An error names the line of the user's file that raised it.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stoker.chance import seed_of
from stoker.errors import BadRequest, StokerError
from stoker.host.out_of_memory import is_out_of_memory
from stoker.recipe.model_file import ModelCode
from stoker.recipe.recipe import Recipe
from stoker.survive.checkpoint import DTYPES
from stoker.text import one_line, shown
from stoker.train.model.own_code import load, trusted_code

COLOURS = 3


def build_own(recipe: Recipe, classes: int) -> nn.Module:
    """The model that the recipe's own function returns. Raises BadRequest, which names the file and
    the line, where the text or the function fails, or returns what cannot be trained."""
    code = trusted_code(recipe)
    with unchanged_process():
        seed_python(seed_of(recipe.seed, "weights"))
        module = attempt(code, lambda: load(code), "cannot be loaded")
        function = getattr(module, code.function, None)
        if not callable(function):
            raise BadRequest(f"{where(code)}: {code.function} is not a function")
        check_argument(code, function)
        seed_python(seed_of(recipe.seed, "weights"))
        model = attempt(code, lambda: function(classes), f"{code.function}({classes}) failed")
    if not isinstance(model, nn.Module):
        kind = "nothing" if model is None else type(model).__name__
        raise BadRequest(f"{where(code)}: {code.function} returned {kind}, not a torch.nn.Module")
    check_weights(code, model)
    if recipe.ema:
        attempt(code, lambda: copy.deepcopy(model), "the model cannot be copied, as --ema needs")
    return model


def seed_python(seed: int) -> None:
    """Seed torch, and the generators of Python and numpy, which a user's code may use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def attempt(code: ModelCode, call: Callable[[], Any], failure: str) -> Any:
    """What a call into the user's code returns. Raises BadRequest with the line that failed."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        if isinstance(error, StokerError) or is_out_of_memory(error):
            raise
        raise BadRequest(f"{where(code, error)}: {failure}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def where(code: ModelCode, error: BaseException | None = None) -> str:
    """The user's file, with the line in which an error was raised or passed through."""
    frames = inspect.getinnerframes(error.__traceback__) if error and error.__traceback__ else []
    lines = [frame.lineno for frame in frames if frame.filename == str(code.path)]
    return shown(code.path.name) + (f":{lines[-1]}" if lines else "")


def check_argument(code: ModelCode, function: Callable[..., Any]) -> None:
    """Raise BadRequest where a function does not take the number of classes, and nothing else."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a compiled function: the call decides
    try:
        signature.bind(2)
    except TypeError as error:
        raise BadRequest(
            f"{where(code)}: {code.function} is called with the number of classes, as in "
            f"{code.function}(10), and it takes {signature}"
        ) from error


def check_weights(code: ModelCode, model: nn.Module) -> None:
    """Raise BadRequest where a model has nothing to train, or something that cannot be saved."""
    name, parameters = f"{where(code)}: the model", list(model.parameters())
    if any(map(is_lazy, [*parameters, *model.buffers()])):
        raise BadRequest(f"{name} has lazy layers, whose sizes are unknown: give their sizes")
    if not any(parameter.requires_grad for parameter in parameters):
        raise BadRequest(f"{name} has no parameters to train")
    for key, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            raise BadRequest(f"{name} keeps {kind} in its state ({shown(key)}): use tensors only")
        if value.dtype not in DTYPES or value.layout != torch.strided:
            raise BadRequest(
                f"{name} has {shown(key)} of the type {value.dtype}, {value.layout}, which a "
                "checkpoint cannot hold"
            )


def own_normalise(code: ModelCode, expected: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation in a model's `pretrained_cfg`. Raises BadRequest for others than
    three numbers each."""
    mean, std = (tuple(expected.get(key, ())) for key in ("mean", "std"))
    numbers = [*mean, *std]
    if len(mean) != COLOURS or len(std) != COLOURS or not all(map(is_finite, numbers)) or 0 in std:
        raise BadRequest(
            f"{where(code)}: pretrained_cfg needs mean and std, three numbers each, not "
            f"{shown(one_line(f'{mean} and {std}'))}"
        )
    return tuple(map(float, mean)), tuple(map(float, std))


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Put back, at the end, what a text may change for the whole process: torch's settings, the
    working directory, the import path, and the generators of Python and numpy."""
    cudnn, place = torch.backends.cudnn, None
    with suppress(OSError):  # it may have been removed
        place = Path.cwd()
    path, python, numbers = list(sys.path), random.getstate(), np.random.get_state()
    dtype, threads, gradients = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
    )
    precision, benchmark, tf32 = (
        torch.get_float32_matmul_precision(),
        cudnn.benchmark,
        cudnn.allow_tf32,
    )
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_grad_enabled(gradients)
        torch.set_float32_matmul_precision(precision)
        cudnn.benchmark, cudnn.allow_tf32 = benchmark, tf32
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
        sys.path[:] = path
        random.setstate(python)
        np.random.set_state(numbers)
        if place is not None:
            with suppress(OSError):
                os.chdir(place)
