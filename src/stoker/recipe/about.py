"""What a key of the recipe means, what it accepts, and when to change it."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from stoker.recipe.changes import CONSENT, FIXED, HARMLESS, kind_of
from stoker.recipe.recipe import LIMITS, SPECS, TYPES, dump_value
from stoker.recipe.resolve import EXPECTED, parse_toml, preset_names, read_recipe, unknown_key

RESUMES = {
    HARMLESS: "A run goes on with another value at any time.",
    CONSENT: "A run goes on with another value after --allow-change only.",
    FIXED: "Another value is another run.",
}
"""What a change of a key means to a run that resumes."""


@dataclass(frozen=True)
class KeyFacts:
    """All that is known about one key."""

    name: str
    meaning: str
    default: str
    accepts: str
    when: str
    """When to change it."""
    resumes: str
    presets: dict[str, str]
    """The presets that set it, with their values."""

    @property
    def flag(self) -> str:
        """Its flag, or '' where it is set in recipe files only."""
        return "" if SPECS[self.name].metadata["rare"] else f"--{self.name.replace('_', '-')}"

    def lines(self) -> list[str]:
        """The facts as text."""
        place = f"flag {self.flag}" if self.flag else "set in a recipe file; it has no flag"
        presets = ", ".join(f"{name} {value}" for name, value in self.presets.items())
        return [
            f"{self.name}: {self.meaning}",
            f"  default {self.default}; takes {self.accepts}; {place}",
            f"  when to change it: {self.when}",
            f"  {self.resumes}",
            *([f"  presets: {presets}"] if presets else []),
        ]


@cache
def advice() -> dict[str, dict[str, str]]:
    """When to change each key: groups by title, each with its keys."""
    file = resources.files("stoker.recipe") / "advice.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


@cache
def preset_values() -> dict[str, dict[str, Any]]:
    """The values that each preset sets."""
    texts = {name: read_recipe(name) for name in preset_names()}
    return {
        name: {key: value for key, (value, _) in parse_toml(text, source).items()}
        for name, (text, source, _) in texts.items()
    }


def about(name: str) -> KeyFacts:
    """The facts about a key. Raises BadRequest, with the nearest key, where there is none."""
    plain = name.removeprefix("--").replace("-", "_")
    if plain not in SPECS:
        raise unknown_key(name, "--about", SPECS)
    spec = SPECS[plain]
    whens = {key: text for keys in advice().values() for key, text in keys.items()}
    presets = {
        preset: as_toml(values[plain])
        for preset, values in preset_values().items()
        if plain in values and plain != "phases"
    }
    return KeyFacts(
        name=plain,
        meaning=spec.metadata["help"],
        default=as_toml(spec.default),
        accepts=accepted(plain),
        when=whens[plain],
        resumes=RESUMES[kind_of(plain)],
        presets=presets,
    )


def as_toml(value: Any) -> str:
    """A value as it stands in a recipe file."""
    return json.dumps(dump_value(value), ensure_ascii=False)


def accepted(name: str) -> str:
    """Which values a key takes, in words."""
    metadata = SPECS[name].metadata
    if metadata["choices"]:
        return ", ".join(metadata["choices"])
    if name == "phases":
        return "[[phases]] tables"
    kind = EXPECTED.get(TYPES[name], "a list of numbers")
    limits = [
        f"{word.replace('_', ' ')} {metadata[word]:g}"
        for word in LIMITS
        if metadata[word] is not None
    ]
    return ", ".join([kind, *limits])
