"""Write plain data as YAML that a person can read and edit.

Invariants: a text is written plain only where every reader of YAML takes it for the same text;
else it is in quotes. Nothing holds a control character, so no value can leave its place. Scripts
are blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from stoker.errors import BadRequest
from stoker.text import shown

Plain = None | bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"]
_PLAIN = re.compile(r"[A-Za-z~/.][A-Za-z0-9_./+@-]*(:[A-Za-z0-9_./+@-]+)*")
"""Texts without quotes: they begin like a name or a path, and a colon has no space behind it."""
_NOT_TEXT = re.compile(
    r"true|false|yes|no|on|off|y|n|null|~|\.{1,3}|\.nan|\.inf|[.+-]?[0-9].*", re.IGNORECASE
)
"""What some reader takes for a number, a truth value or nothing."""

_BLOCK = re.compile(r"[^\s](.|\n)*[^\s]\n")


def yaml_text(value: Mapping[str, Plain]) -> str:
    """The text of a mapping. Raises BadRequest for control characters."""
    return "\n".join(_mapping(value, "")) + "\n"


def scalar(value: Plain) -> str:
    """One value in one line. Raises BadRequest for a text that is not one line."""
    if isinstance(value, float):  # without a dot, 1e-05 is a text
        mantissa, power, digits = json.dumps(value).partition("e")
        return f"{mantissa}{'.0' * ('.' not in mantissa)}{power}{digits}"
    if not isinstance(value, str):
        return json.dumps(value)
    require_one_line(value)
    if _PLAIN.fullmatch(value) and not _NOT_TEXT.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def require_one_line(text: str) -> None:
    """Raise BadRequest for line breaks and control characters: they would hide what a file says."""
    if not text.isprintable():
        raise BadRequest(f"a value has a line break or a control character: '{shown(text)}'")


def _mapping(value: Mapping[str, Plain], indent: str) -> Iterator[str]:
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield f"{indent}{scalar(key)}:"
            yield from _mapping(each, f"{indent}  ")
        elif isinstance(each, str) and _BLOCK.fullmatch(each):
            yield f"{indent}{scalar(key)}: |"
            for line in each.removesuffix("\n").split("\n"):
                require_one_line(line)
                yield f"{indent}  {line}" if line else ""
        elif isinstance(each, list | tuple):
            yield f"{indent}{scalar(key)}: [{', '.join(map(scalar, each))}]"
        else:
            yield f"{indent}{scalar(key)}: {scalar(each) if each != {} else '{}'}"
