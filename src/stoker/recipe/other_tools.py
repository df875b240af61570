"""Settings of other tools (timm, torchvision, ...), with ours: the table in other_tools.toml.

The file is read when it is needed: for a message about a setting that Stoker does not have.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from stoker.recipe.recipe import SPECS

SPELLING = re.compile(r"-{0,2}[A-Za-z][\w-]*")
"""A setting that can be typed as a flag or as a key; a call such as MixUp(alpha) cannot."""
GENERAL = {
    "batch_size_per_gpu": "batch_size",
    "class_weight": "class_weights",
    "colour_jitter": "color_jitter",
    "drop_path_rate": "drop_path",
    "drop_rate": "dropout",
    "early_stopping": "patience",
    "early_stopping_patience": "patience",
    "epoch": "epochs",
    "finetune": "weights",
    "freeze_layers": "freeze",
    "gradient_clip": "clip_grad",
    "learning_rate": "lr",
    "stochastic_depth": "drop_path",
    "target_accuracy": "target",
    "use_ema": "ema",
    "warmup": "warmup_epochs",
}
"""Names of no tool in particular, with ours."""


@dataclass(frozen=True)
class ForeignSetting:
    """What Stoker has in place of a setting of other tools."""

    theirs: str
    """One spelling, or several separated by ", "."""
    ours: str
    """A recipe key, a flag of `stoker train`, a command, or ''."""
    note: str

    @property
    def names(self) -> list[str]:
        """Its spellings as keys, of those that can be typed."""
        spellings = self.theirs.split(", ")
        return [plain_name(each) for each in spellings if SPELLING.fullmatch(each)]

    def fits(self, known: Container[str], *, as_flag: bool) -> bool:
        """Whether ours is among the known names, or is something else than such a name."""
        if self.ours in SPECS or (as_flag and self.ours.startswith("--")):
            return plain_name(self.ours) in known
        return True

    def answer(self, *, as_flag: bool) -> str:
        """What to do instead, as the rest of a sentence."""
        if not self.ours:
            return self.note
        if self.ours in SPECS:
            flag = as_flag and not SPECS[self.ours].metadata["rare"]
            ours = f"--{self.ours.replace('_', '-')}" if flag else self.ours
            words = f"Stoker calls it '{ours}'"
            words += ", in a recipe file" if as_flag and not flag else ""
        elif self.ours.startswith("--"):
            words = f"Stoker calls it '{self.ours}'" if as_flag else f"use the flag '{self.ours}'"
        else:
            words = f"use '{self.ours}'"
        return f"{words} ({self.note})" if self.note else words


@dataclass(frozen=True)
class OtherTool:
    """A tool with its settings, and where their names were read."""

    name: str
    program: str
    version: str
    checked: str
    rows: tuple[ForeignSetting, ...]


def plain_name(word: str) -> str:
    """A flag or key without dashes and sections, in lower case."""
    return word.rsplit(".", 1)[-1].strip("-_ ").replace("-", "_").lower()


@cache
def other_tools() -> tuple[OtherTool, ...]:
    """The tools in the order of the file."""
    text = (resources.files("stoker.recipe") / "other_tools.toml").read_text(encoding="utf-8")
    return tuple(
        OtherTool(**{**tool, "rows": tuple(ForeignSetting(**row) for row in tool["rows"])})
        for tool in tomllib.loads(text)["tools"]
    )


def foreign_settings() -> Iterator[tuple[str, OtherTool, ForeignSetting]]:
    """Each name that is not also our own name for it, with its tool and its row."""
    for tool in other_tools():
        for row in tool.rows:
            for name in row.names:
                if name not in SPECS and name != plain_name(row.ours):
                    yield name, tool, row


@cache
def aliases() -> dict[str, str]:
    """Foreign names with our keys."""
    known = [(name, row.ours) for name, _, row in foreign_settings() if row.ours in SPECS]
    return {**dict(reversed(known)), **GENERAL}


def foreign_answer(word: str, known: Container[str], *, as_flag: bool) -> str | None:
    """Whose setting a word is and what to do instead, as the rest of a sentence; None for a word of
    no tool, or where ours is not among the known names."""
    name = plain_name(word)
    rows = [(tool.name, row) for each, tool, row in foreign_settings() if each == name]
    if not rows or not rows[0][1].fits(known, as_flag=as_flag):
        return None
    answer = rows[0][1].answer(as_flag=as_flag)
    *others, last = [tool for tool, row in rows if row.answer(as_flag=as_flag) == answer]
    named = f"{', '.join(others)} and {last}" if others else last
    return f"comes from {named}: {answer}"
