from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import Cell, Plan, cell_of

CELL = Cell("a", ("true",), {"x": 1}, (), "s")


def test_the_id_depends_on_all_that_a_result_depends_on_and_not_on_the_label() -> None:
    changed = [
        replace(CELL, command=("true", "x")),
        replace(CELL, meaning={"x": 2}),
        replace(CELL, meaning={"x": 1.0}),
        replace(CELL, meaning={"x": "1"}),
        replace(CELL, parents=(CELL.id,)),
        replace(CELL, sources="t"),
    ]
    assert len({cell.id for cell in [CELL, *changed]}) == 7
    assert replace(CELL, label="b").id == CELL.id


def test_the_order_of_keys_does_not_matter() -> None:
    assert replace(CELL, meaning={"a": 1, "b": 2}).id == replace(CELL, meaning={"b": 2, "a": 1}).id


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        _ = replace(CELL, meaning={"x": float("nan")}).id


anything = st.text(st.characters())  # surrogates too, which names of files can have
json_values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | anything,
    lambda inner: st.lists(inner) | st.dictionaries(anything, inner),
    max_leaves=8,
)


@given(st.dictionaries(anything, json_values), anything, st.lists(anything, min_size=1))
def test_a_plan_reads_back(meaning: dict[str, Any], label: str, command: list[str]) -> None:
    first = Cell(label, tuple(command), meaning)
    plan = Plan.of([first, Cell("child", ("x",), {}, (first.id,))])
    again = Plan.from_bytes(plan.to_bytes())
    assert again.cells == plan.cells
    assert again.to_bytes() == plan.to_bytes()


def test_a_parent_comes_first() -> None:
    with pytest.raises(BadRequest, match="not planned"):
        Plan().add(replace(CELL, parents=("0" * 32,)))


def test_a_cell_that_is_added_twice_is_one() -> None:
    assert len(Plan.of([CELL, replace(CELL, label="b")]).cells) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {**CELL.as_json(), "more": 1},
        {**CELL.as_json(), "command": []},
        {**CELL.as_json(), "command": [1]},
        {**CELL.as_json(), "command": "true"},
        {**CELL.as_json(), "parents": [None]},
        {**CELL.as_json(), "meaning": []},
    ],
)
def test_what_is_no_cell_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="cell"):
        cell_of(json.loads(json.dumps(wrong)))


def test_all_that_needs_a_failed_cell_is_blocked() -> None:
    a, b = Cell("a", ("x",), {}), Cell("b", ("x",), {"b": 1})
    c = Cell("c", ("x",), {}, (a.id,))
    d = Cell("d", ("x",), {}, (c.id, b.id))
    plan = Plan.of([a, b, c, d])
    assert plan.blocked_by([a.id]) == {c.id, d.id}
    assert plan.blocked_by([b.id]) == {d.id}
    assert plan.blocked_by([]) == set()
