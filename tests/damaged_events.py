"""Files of events as a bad disk, a full one or a text editor leaves them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLIPS = range(500)
"""Each is a file with one changed byte."""


def flip(whole: bytes, number: int) -> bytes:
    """The bytes with one changed: a bit of it, or all of it. The same number gives the same."""
    chance = random.Random(number)
    place = chance.randrange(len(whole))
    value = whole[place] ^ (1 << chance.randrange(8)) if number % 2 else chance.randrange(256)
    return whole[:place] + bytes([value]) + whole[place + 1 :]


def line(kind: str, **facts: Any) -> bytes:
    return json.dumps({"kind": kind, "time": 1.0, **facts}).encode()


STEP = {"step": 3, "position": 48, "epoch": 0.5, "batch": 16, "images": 16, "sums": [1.0, 2.0, 3.0]}
START = {"position": 0, "step": 0}
EVALUATION = {"position": 48, "images": 12, "top1": 3}
NOT_EVENTS = {
    "not UTF-8": b'{"kind": "note", "words": "\xff\xfe"}',
    "200,000 brackets": b"[" * 200_000,
    "200,000 objects": b'{"a":' * 200_000,
    "a long line": b'{"kind": "note", "words": "' + b"x" * (1 << 20) + b'"}',
    "a number": b"5",
    "an empty line": b"",
    "zeros": b"\0" * 4096,
    "UTF-16": '{"kind": "note", "words": "x"}'.encode("utf-16"),
    "an integer of 5,000 digits": b'{"kind": "end", "outcome": "x", "step": ' + b"9" * 5000 + b"}",
    "a kind that is a list": b'{"kind": ["step"]}',
}
WRONG_FIELDS: dict[str, bytes] = {
    "attempt alone": line("attempt"),
    "end alone": line("end"),
    "step alone": line("step"),
    "evaluation alone": line("evaluation"),
    "stall alone": line("stall"),
    **{
        f"step, {name} {value!r}": line("step", **{**STEP, name: value})
        for name, value in (
            *(("step", "x"), ("step", -1), ("step", 1.5), ("step", None), ("step", True)),
            *(("step", 10**30), ("step", float("nan")), ("position", [1]), ("position", {})),
            *(("batch", float("inf")), ("images", "many"), ("sums", [1.0]), ("sums", {"a": 1})),
            *(("sums", [1.0, 2.0, "x"]), ("parts", [1]), ("parts", {"data": "x"})),
            *(("parts", {"data": {"data": 1}}), ("parts", {"data": float("nan")})),
            *(("parts", {"data": 1e308}), ("on_cpu", 3), ("work", {"cpu": None}), ("sent", "x")),
        )
    },
    **{
        f"attempt, {name} {value!r}": line("attempt", **{**START, name: value})
        for name, value in (
            *(("position", "x"), ("environment", []), ("environment", {"device": 3})),
            *(("environment", {"threads": "x"}), ("environment", {"host": {}}), ("world", 0)),
            *(("loading_threads", 0), ("startup_s", float("nan")), ("startup_s", "x")),
            *(("derived", None), ("warnings", "x"), ("torn", [1]), ("unseen", 1e300)),
            *(("steps", "x"), ("samples", {}), ("capacity", "x"), ("local_world", -2)),
        )
    },
    **{
        f"evaluation, {name} {value!r}": line("evaluation", **{**EVALUATION, name: value})
        for name, value in (
            *(("images", 0), ("images", "x"), ("top1", None), ("top5", []), ("epoch", "x")),
            *(("position", None), ("epoch", float("inf"))),
        )
    },
    "end, outcome 3": line("end", outcome=3),
    "end, reason []": line("end", outcome="failed", reason=[]),
    "end, parts x": line("end", outcome="failed", parts="x"),
    "end, step x": line("end", outcome="failed", step="x"),
    "probe, cpu x": line("probe", step=40, cpu="x"),
    "probe, lock x": line("probe", step=40, lock={"late_share": "x"}),
    "probe, threads": line("probe", step=40, threads=[{"name": 3}]),
    "probe, gpus": line("probe", step=40, gpus=[{"throttles": [1]}]),
    "larger_batch, seconds 0": line("larger_batch", step=15, seconds=0, larger_s=1.0),
    "stall, words 5": line("stall", step=3, words=5),
    "an unknown kind, parts x": line("from a newer version", parts="x"),
}
DAMAGED_LINES = NOT_EVENTS | WRONG_FIELDS
HARMLESS_LINES = {
    "an unknown kind": line("from a newer version", words={"a": [1]}),
    "a loss that is not a number": line("step", **{**STEP, "sums": [float("nan"), 2.0, 3.0]}),
    "an attempt of its own": line("note", words="x", attempt="x"),
}


def insert(text: bytes) -> Callable[[bytes], bytes]:
    """Puts a line after the fifth of a file."""

    def change(whole: bytes) -> bytes:
        lines = whole.splitlines(keepends=True)
        return b"".join([*lines[:5], text + b"\n", *lines[5:]])

    return change


def be_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
