"""Result files: written and read back, continued, and refused where they are not right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_results import FIGURES, failed, result, row, seed_table
from golden import check_golden
from stoker.errors import BadRequest, NewerFormat
from stoker.plan.bench import result as result_module
from stoker.plan.bench.result import BenchResult, StoredCode, read_result, write_result
from stoker.plan.bench.session import continued, differences, models_of

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def stored(tmp_path: Path, value: BenchResult | Any) -> Path:
    path = tmp_path / "bench.json"
    if isinstance(value, BenchResult):
        write_result(path, value)
    else:
        path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("number", [0, 1])
def test_a_result_is_read_back_as_it_was(tmp_path: Path, number: int) -> None:
    whole = replace(seed_table()[number], codes={"net.py:build": StoredCode("/a/net.py", "x = 1")})
    assert read_result(stored(tmp_path, whole)) == whole
    assert read_result(stored(tmp_path, whole)).config_hash == whole.config_hash


def test_the_hash_follows_the_settings() -> None:
    one = result(row())
    assert one.config_hash == result(row(50.0), machine="another").config_hash
    assert one.config_hash != replace(one, limits=replace(one.limits, steps=7)).config_hash
    assert one.config_hash != replace(one, data=replace(one.data, fingerprint="x")).config_hash


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    data: Any = result(row(), failed("crashed", "why", batch_size=8)).as_data()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return dict(data)


WRONG: dict[str, tuple[tuple[Any, ...], Any]] = {
    "another kind": (("kind",), "something"),
    "no format": (("format",), None),
    "an outcome": (("rows", 0, "outcome"), "fine"),
    "figures of a crash": (("rows", 1, "figures"), {}),
    "no figures": (("rows", 0, "figures"), None),
    "a rate of zero": (("rows", 0, "figures", "rates"), [1.0, 0.0]),
    "no rates": (("rows", 0, "figures", "rates"), []),
    "a rate that is text": (("rows", 0, "figures", "rates"), ["1"]),
    "a huge number": (("rows", 0, "figures", "memory_bytes"), 10**400),
    "a share above one": (("rows", 0, "figures", "data_share"), 1.5),
    "a precision": (("cells", 0, "precision"), "fp8"),
    "ranks": (("rows", 0, "cell", "ranks"), True),
    "a price below zero": (("price", "dollars"), -1.0),
    "a kind of price": (("price", "kind"), "free"),
    "rows": (("rows",), {}),
    "a long text": (("machine",), "x" * 201),
    "a set without images": (("data", "images"), 0),
    "a recipe": (("recipes", "resnet18"), 3),
    "an unplanned cell": (("cells",), []),
    "no recipe": (("recipes",), {}),
    "an epoch": (("rows", 0, "figures", "seconds_per_epoch"), 45.0),
    "a median": (("rows", 0, "figures", "images_per_s"), 15_000.0),
    "dollars": (("rows", 0, "figures", "dollars_per_epoch"), 8.25),
    "dollars without a price": (("price",), None),
    "a price without dollars": (("rows", 0, "figures", "dollars_per_epoch"), None),
}


def test_wrong_files_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = []
    for name, (place, value) in WRONG.items():
        Path("bench.json").write_text(json.dumps(changed(place, value)))
        with pytest.raises(BadRequest) as error:
            read_result(Path("bench.json"))
        lines += [f"{name}:", f"  {error.value}"]
    check_golden("bench_wrong_files", lines)


def test_what_is_no_file_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bench.json"
    with pytest.raises(BadRequest, match="No such file"):
        read_result(path)
    for text in ("", "{", "[" * 100_000, "3", "[]", "null"):
        path.write_text(text)
        with pytest.raises(BadRequest):
            read_result(path)
    with pytest.raises(NewerFormat):
        read_result(stored(tmp_path, changed(("format",), 2)))
    monkeypatch.setattr(result_module, "MOST_BYTES", 100)
    with pytest.raises(BadRequest, match="larger than"):
        read_result(stored(tmp_path, result(row())))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_change_of_a_file_is_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    value: Any = result(row(), failed("crashed", "why", batch_size=8)).as_data()
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(JSON)
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(value))
    try:
        read = read_result(path)
        read.as_data()
    except BadRequest as error:
        assert "\n" not in str(error)


def test_a_file_is_continued_with_its_rows(tmp_path: Path) -> None:
    old = result(row(), machine="the name it had")
    new = replace(result(row(), row(batch_size=8)), rows=())
    path = stored(tmp_path, old)
    both = continued(path, new)
    assert both.rows == old.rows
    assert both.missing() == [row(batch_size=8).cell]
    assert continued(tmp_path / "none.json", new) == new


def test_rows_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    old = result(row())
    path = stored(tmp_path, old)
    others = {
        "steps": replace(old, limits=replace(old.limits, steps=7)),
        "set": replace(old, data=replace(old.data, fingerprint="another")),
        "lr of resnet18": replace(
            old, recipes={"resnet18": {**old.recipes["resnet18"], "lr": 0.5}}
        ),
        "torch": replace(old, environment={**old.environment, "versions": {"torch": "3"}}),
        "processor": replace(old, environment={**old.environment, "processor": "another"}),
    }
    for name, other in others.items():
        with pytest.raises(BadRequest, match=f"another {name}|number of {name}"):
            continued(path, other)
        assert differences(old, other)
    assert not differences(old, replace(old, limits=replace(old.limits, time_limit_s=5.0)))


def test_a_price_that_changed_is_the_new_one(tmp_path: Path) -> None:
    path = stored(tmp_path, result(row(), price=1.0))
    write_result(path, continued(path, result(row(), price=2.0)))
    read = read_result(path)
    assert read.dollars_per_hour == 2.0
    dollars = read.rows[0].epoch_dollars(read.data.images, read.dollars_per_hour)
    assert dollars == pytest.approx(12_000 / 102 / 3600 * 2)


def test_a_stored_recipe_is_checked_when_it_is_used() -> None:
    good = result(row(figures=FIGURES))
    assert models_of(good)["resnet18"].recipe.model == "resnet18"
    with pytest.raises(BadRequest, match="the recipe of resnet18 in the file"):
        models_of(replace(good, recipes={"resnet18": {"epochs": "many"}}))


def test_code_of_a_file_is_only_that_of_its_own_models() -> None:
    own = result(row(model="net.py:build"))
    assert models_of(own)["net.py:build"].code is not None
    with pytest.raises(BadRequest, match="does not hold the code"):
        models_of(replace(own, codes={}))
    with pytest.raises(BadRequest, match="does not hold the code"):
        models_of(replace(own, codes={"net.py:build": StoredCode("/x", "another text")}))
    recipes = {"resnet18": own.recipes["net.py:build"]}
    with pytest.raises(BadRequest, match=r"is one of net\.py:build"):
        models_of(replace(result(row()), recipes=recipes))
    code = {"resnet18": StoredCode("/x", "import os")}
    assert models_of(result(row(), codes=code))["resnet18"].code is None
