"""Read a file of claims: TOML from anywhere.

Invariants: nothing but plain numbers and texts is taken from it. A key that is unknown, of another
type, or a number out of its range is refused with the claim and the key, and so is a file that is
too large, has too many claims, or is no plain file.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from stoker.errors import BadRequest
from stoker.host.plain_file import read_given
from stoker.plan.claims.claim import (
    LARGEST,
    OUTCOMES,
    SMALLEST,
    ClaimedPhase,
    Figure,
    RunClaim,
    kinds_of,
)
from stoker.recipe.resolve import nearest
from stoker.text import one_line, printable, shown

MOST_BYTES = 4_000_000
MOST_CLAIMS = 10_000
MOST_PHASES = 100
LONGEST_TEXT = 200


def read_claims(path: Path) -> list[RunClaim]:
    """The claims of a file. Raises BadRequest where it is not a valid one."""
    name = shown(str(path))
    try:
        text = read_given(path, MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{name} is not UTF-8 text, at byte {error.start:,}") from error
    except OSError as error:
        raise BadRequest(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadRequest(f"{name} cannot be read: {error}") from error
    return parse_claims(text, name)


def parse_claims(text: str, source: str) -> list[RunClaim]:
    """The claims of a TOML text. Raises BadRequest where it is not a valid one."""
    try:
        table = tomllib.loads(text, parse_float=number_of)
    except RecursionError as error:
        raise BadRequest(f"{source}: its lists are nested too deeply for claims") from error
    except ValueError as error:
        raise BadRequest(f"{source}: not valid TOML: {printable(one_line(str(error)))}") from error
    rows = table.pop("claim", None)
    if table:
        raise BadRequest(
            f"{source}: unknown key '{name_of(next(iter(table)))}': each claim is a table "
            "[[claim]], with its figures below"
        )
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise BadRequest(f"{source} has no claims: begin each one with a line [[claim]]")
    if len(rows) > MOST_CLAIMS:
        raise BadRequest(f"{source} has {len(rows):,} claims, more than {MOST_CLAIMS:,}: cut it")
    return [claim_of(row, number, source) for number, row in enumerate(rows, 1)]


def number_of(text: str) -> Decimal:
    """A number with its digits; NaN where it is not finite."""
    return Decimal(text) if math.isfinite(float(text)) else Decimal("NaN")


def claim_of(row: dict[str, Any], number: int, source: str) -> RunClaim:
    """One claim. Raises BadRequest where a key or value is wrong."""
    raw = row.get("name")
    name = raw if isinstance(raw, str) and raw else f"claim {number}"
    where = f"{source}: {printable(name[:LONGEST_TEXT])}"
    phases = row.pop("phases", [])
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        raise BadRequest(f"{where}: write each phase as a table [[claim.phases]]")
    if len(phases) > MOST_PHASES:
        raise BadRequest(f"{where}: {len(phases):,} phases are more than {MOST_PHASES}")
    values = values_of(row, RunClaim, where)
    if "hours" in values and "minutes" in values:
        raise BadRequest(f"{where}: hours and minutes state the same: drop one")
    if values.get("outcome", "ok") not in OUTCOMES:
        raise BadRequest(f"{where}: outcome must be one of {', '.join(OUTCOMES)}")
    stages = tuple(ClaimedPhase(**values_of(phase, ClaimedPhase, where)) for phase in phases)
    return RunClaim(**{**values, "name": name, "phases": stages})


def values_of(row: Mapping[str, Any], table: type, where: str) -> dict[str, Any]:
    """The checked values of a table of the file. Raises BadRequest for the first wrong one."""
    kinds = kinds_of(table)
    values: dict[str, Any] = {}
    for key, raw in row.items():
        if key not in kinds:
            near = nearest(key, kinds)
            hint = f"did you mean '{near}'?" if near else f"the keys are {', '.join(kinds)}"
            raise BadRequest(f"{where}: unknown key '{name_of(key)}': {hint}")
        if kinds[key] == "text":
            values[key] = text_of(raw, key, where)
        else:
            values[key] = figure_of(raw, key, where, exact=kinds[key] == "count")
    return values


def text_of(raw: Any, key: str, where: str) -> str:
    if not isinstance(raw, str) or len(raw) > LONGEST_TEXT:
        raise BadRequest(f"{where}: {key} must be a text of at most {LONGEST_TEXT} characters")
    return raw


def figure_of(raw: Any, key: str, where: str, *, exact: bool) -> Figure:
    """A number, or a range of two. Raises BadRequest for anything else."""
    if isinstance(raw, list) and len(raw) == 2 and not exact:
        low, high = (single_figure(each, key, where, exact=False) for each in raw)
        if low.value > high.value:
            raise BadRequest(f"{where}: {key} must be a range from the smaller to the larger")
        return Figure.between(low, high)
    return single_figure(raw, key, where, exact=exact)


def single_figure(raw: Any, key: str, where: str, *, exact: bool) -> Figure:
    if isinstance(raw, bool) or not isinstance(raw, int if exact else int | Decimal):
        kind = "a whole number" if exact else "a number, or a range such as [3, 4]"
        raise BadRequest(f"{where}: {key} must be {kind}")
    if (isinstance(raw, Decimal) and raw.is_nan()) or not SMALLEST <= raw <= LARGEST:
        raise BadRequest(f"{where}: {key} must be above 0 and at most {LARGEST:g}")
    return Figure.of(raw, exact)


def name_of(key: str) -> str:
    """A key of the file, as a message shows it."""
    return printable(key[:40])
