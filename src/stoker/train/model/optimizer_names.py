"""The names of optimisers, checked without importing torch or timm, which takes seconds.

Invariants: what is refused here cannot train, or would not resume with the same bits. All others of
timm are tested: their state is restored from a checkpoint to the bit.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import nearest
from stoker.text import shown

BUILT_IN = ("sgd", "adamw")
IN_SETTINGS = "it keeps numbers of its steps in its settings, which a checkpoint does not restore"
REFUSED = {
    r"lookahead_(\w+)": IN_SETTINGS,
    r"(radam)legacy": IN_SETTINGS,
    r"r(adabelief)": IN_SETTINGS,
    r"adahessian()": "it needs a second backward pass in each step",
    r"kron\w*()": "it draws random numbers that differ between ranks",
    r"fused(\w+)": "it needs NVIDIA's apex, with which no checkpoint is tested",
    r"bnb([a-z]+)(?:8bit)?": "it needs bitsandbytes, with which no checkpoint is tested",
}
"""Patterns of names, and why they are refused. The group is a name that does the same."""
_NAME = re.compile(r"\bname='(\w+)'")
_ALIAS = re.compile(r"register_alias\('(\w+)'")


def check_optimizer(recipe: Recipe) -> None:
    """Raise BadRequest for an optimiser that does not exist, is not installed, or is refused."""
    name = recipe.optimizer
    if name in BUILT_IN:
        return
    for pattern, reason in REFUSED.items():
        if match := re.fullmatch(pattern, name):
            instead = match.group(1) or "adamw"
            raise BadRequest(f"--optimizer {name} is not offered: {reason}; use {instead}")
    spec = find_spec("timm")
    names = timm_optimizers(*(spec.submodule_search_locations or ())) if spec else frozenset()
    if spec is None and nearest(name, BUILT_IN) is None:
        raise BadRequest(
            f"optimizer '{shown(name)}' comes from timm, which is not installed: "
            "pip install timm, or use --optimizer sgd or adamw"
        )
    # timm's files may look different one day: then timm itself decides, when it is built.
    if spec is None or (names and name not in names):
        near = nearest(name, sorted({*BUILT_IN, *names} - refused_of(names))) if name else None
        hint = f"did you mean '{near}'?" if near else "for example lamb, lion or muon"
        raise BadRequest(f"no optimizer called '{shown(name)}': {hint}")


def refused_of(names: frozenset[str]) -> set[str]:
    """Those of some names that are refused."""
    return {name for name in names if any(re.fullmatch(pattern, name) for pattern in REFUSED)}


@cache
def timm_optimizers(*folders: str) -> frozenset[str]:
    """The names of timm's optimisers, from its files."""
    names: set[str] = set()
    for folder in folders:
        for file in Path(folder, "optim").glob("_optim_factory.py"):
            text = file.read_text(encoding="utf-8", errors="replace")
            names.update(_NAME.findall(text), _ALIAS.findall(text))
    return frozenset(names)
