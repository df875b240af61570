"""Tables of a run for pandas.

`steps`, a row for each step that counts: `step`, `position` (samples before it), `epoch`,
`attempt`, `time` (when it was written, in seconds since 1970), `loss`, `top1` and `top5` (means
over the images of all ranks), `lr`, `norm` (of the gradient), `images` (of all ranks), `step_s`
(seconds, without what comes between steps), and the seconds of each part: `parts.forward` and so
on, of rank 0.

`evaluation`, a row for each evaluation that counts: `step`, `position`, `epoch`, `attempt`, `time`,
`images`, `top1` and `top5` as shares, `loss`, `seconds`.

`rows`, a row for about ten seconds of steps: the columns of `steps`, and `count`, how many steps it
holds. `step`, `epoch`, `time` and `lr` are those of its last step, `position` is the samples up to
its end; `loss`, `top1` and `top5` are means over the images of rank 0, `norm` is the largest,
`images` are added up over ranks and steps; `step_s` and the parts are means of a step.

Invariants: attempts are merged: of steps that were made twice, the later ones count. Rows are in
the order of training. What was not recorded is NaN; a loss that was NaN or infinite stays so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.errors import BadRequest
from stoker.run.kinds import Event, is_number
from stoker.run.rows import NOT_TRAINING, time_of

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

Row = dict[str, Any]
WHOLE = ("step", "position", "attempt", "count", "images")
"""Columns of whole numbers."""
STEP_COLUMNS = (
    *("step", "position", "epoch", "attempt", "time", "loss", "top1", "top5", "lr", "norm"),
    *("images", "step_s"),
)
EVALUATION_COLUMNS = (
    *("step", "position", "epoch", "attempt", "time", "images", "top1", "top5", "loss"),
    "seconds",
)
ROW_COLUMNS = (*STEP_COLUMNS, "count")
PART = "parts."


def frame_of(kind: str, sources: Mapping[str, Callable[[], list[Event]]]) -> pandas.DataFrame:
    """The table of a kind, made of the events that its source gives. Raises BadRequest for another
    kind, and where pandas is not installed."""
    if kind not in TABLES:
        raise BadRequest(f"a run has no frame {kind!r}: name one of {', '.join(TABLES)}")
    try:
        import pandas
    except ImportError as error:
        raise BadRequest("Run.frame needs pandas: pip install pandas") from error
    row_of, columns = TABLES[kind]
    rows = [row_of(event) for event in sources[kind]()]
    parts = dict.fromkeys(name for row in rows for name in row if name.startswith(PART))
    absent = dict.fromkeys(columns, math.nan) | dict.fromkeys(parts, 0.0)
    table = {
        name: pandas.Series(
            [row.get(name, value) for row in rows],
            dtype="int64" if name in WHOLE else "float64",
        )
        for name, value in absent.items()
    }
    return pandas.DataFrame(table)


def step_row(step: Event) -> Row:
    return {
        **place_of(step),
        **means_of(step["sums"], step["images"]),
        **numbers_of(step, "lr", "norm"),
        "images": step["images"],
        **times_of_step(step["parts"], 1),
    }


def evaluation_row(event: Event) -> Row:
    return {
        **place_of(event),
        "images": event["images"],
        "top1": event["top1"] / event["images"],
        "top5": event["top5"] / event["images"],
        "loss": event.get("loss", math.nan),
        **numbers_of(event, "seconds"),
    }


def steps_row(row: Event) -> Row:
    return {
        **place_of(row),
        "step": row["last"],
        "position": row["until"],
        **means_of(row["sums"], row["images"]),
        **numbers_of(row, "lr", "norm"),
        "images": row["batch"],
        "count": row["count"],
        **times_of_step(row["parts"], row["count"]),
    }


def place_of(event: Event) -> Row:
    """Where and when an event was written."""
    return {
        "step": event.get("step", 0),
        "position": event["position"],
        "attempt": event["attempt"],
        "time": time_of(event) or math.nan,
        **numbers_of(event, "epoch"),
    }


def means_of(sums: Sequence[float], images: int) -> Row:
    """Loss and accuracy of an image; none without images."""
    if not images:
        return {}
    return {n: total / images for n, total in zip(("loss", "top1", "top5"), sums, strict=True)}


def numbers_of(event: Event, *names: str) -> Row:
    return {name: event[name] for name in names if is_number(event.get(name))}


def times_of_step(parts: Mapping[str, float], count: int) -> Row:
    """The mean seconds of a step and of its parts."""
    training_s = sum(seconds for part, seconds in parts.items() if part not in NOT_TRAINING)
    each = {f"{PART}{part}": seconds / count for part, seconds in parts.items()}
    return {**({"step_s": training_s / count} if parts else {}), **each}


TABLES: Mapping[str, tuple[Callable[[Event], Row], tuple[str, ...]]] = {
    "steps": (step_row, STEP_COLUMNS),
    "evaluation": (evaluation_row, EVALUATION_COLUMNS),
    "rows": (steps_row, ROW_COLUMNS),
}
"""How an event becomes a row, and the columns that each table has."""
