"""Numbers of events, checked one by one and together."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from stoker.run.kinds import LARGEST, are_numbers, event_of, is_number

VALUES: list[Any] = [
    *(0, 1, -1.5, 1e-300, LARGEST, -LARGEST, float(LARGEST)),
    *(LARGEST + 1, -LARGEST - 1, 1e300, 10**400, float("nan"), float("inf"), -float("inf")),
    *(True, False, None, "1", [1], {"a": 1}),
]


@pytest.mark.parametrize("pair", list(product(VALUES, repeat=2)), ids=repr)
def test_together_as_one_by_one(pair: tuple[Any, Any]) -> None:
    assert are_numbers(pair) == all(map(is_number, pair))


def test_none_are_numbers() -> None:
    assert are_numbers([])


@pytest.mark.parametrize("value", [True, None, "1", float("nan"), 1e300])
def test_a_row_with_another_value_is_damaged(value: Any) -> None:
    row = {"kind": "steps", "step": 0, "position": 0, "count": 1, "last": 0, "until": 4}
    row |= {"batch": 4, "images": 4, "longest_s": 0.1, "span": [0, 9]}
    assert event_of(json.dumps({**row, "own_s": [0.1, 2]}).encode())
    assert not event_of(json.dumps({**row, "own_s": [0.1, value]}).encode())
    assert not event_of(json.dumps({**row, "own_s": [0.1], "parts": {"a": value}}).encode())
