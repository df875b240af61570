"""The settings of a pack, beside how images are stored (`Storage`).

Invariant: one table. The flags of `stoker pack`, the keyword arguments of `stoker.pack` and the
limits of both come from `PackOptions`; `PackSettings` repeats the types alone, for a type checker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from stoker.errors import BadRequest
from stoker.recipe.recipe import check_values, key
from stoker.recipe.resolve import nearest

ROLES = ("image", "label", "split")
"""What a column of a table can hold."""


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    val_share: float = key(
        0.1,
        "share of each class that is held out as val where SOURCE has neither val nor test",
        at_least=0,
        below=1,
    )
    columns: Mapping[str, str] = key(
        (),
        "the columns of a table, where their names do not tell: image=NAME,label=NAME,split=NAME",
    )
    whole_labels: bool = key(
        False,
        "take each label of a table as one class name, even if it looks like several labels or "
        "like a measured number",
    )
    allow_one_class: bool = key(
        False, "pack images of a single class: enough to evaluate a model, not to train one"
    )
    allow_missing: bool = key(
        False, "pack a list of URLs without the images that could not be downloaded this time"
    )
    allow_private_addresses: bool = key(
        False, "download a list of URLs from private and local addresses too"
    )
    shard_images: int = key(1000, "images in a shard", at_least=1)
    workers: int = key(0, "processes; 0 starts one for each core", at_least=0)
    max_ram: float = key(
        0.0, "GB of memory for all processes together; 0: half of the machine's", at_least=0
    )

    def __post_init__(self) -> None:
        check_values(self)
        for role, name in dict(self.columns).items():
            if role not in ROLES or not name:
                usage = "columns takes image=NAME,label=NAME,split=NAME"
                raise BadRequest(f"{usage}, not {role}={name}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> PackOptions:
        """The options with these names; BadRequest refuses an unknown name and suggests one."""
        known = [spec.name for spec in fields(cls)]
        for name in settings:
            if name not in known:
                near = nearest(name, [*known, "storage", "progress"])
                hint = f"did you mean '{near}'?" if near else f"its options are {', '.join(known)}"
                raise BadRequest(f"pack has no option '{name}': {hint}")
        return cls(**settings)


class PackSettings(TypedDict, total=False):
    """The keyword arguments of `pack` that set a field of PackOptions."""

    val_share: float
    columns: Mapping[str, str]
    whole_labels: bool
    allow_one_class: bool
    allow_missing: bool
    allow_private_addresses: bool
    shard_images: int
    workers: int
    max_ram: float
