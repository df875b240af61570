"""What differs between runs: settings that count, and nothing that is equal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from compat.kept import FORMAT_1
from made_runs import RunMaker
from run_records import record
from stoker.errors import BadRequest
from stoker.history.differences import (
    RunTraits,
    accuracy_difference,
    differences,
    identity_of,
    settings_of,
    traits_of,
    value_text,
)
from stoker.history.history import history_of
from stoker.price.ledger.cost import cost_of
from stoker.run.directory import Run


def new_run(path: Path, **facts: Any) -> Run:
    run = Run(path)
    run.create(record(**facts), "")
    return run


def named(*runs: Run) -> dict[str, tuple[Any, ...]]:
    """The differences of runs by their group and name."""
    rows = differences([traits_of(run) for run in runs])
    return {f"{row.group}: {row.name}": row.values for row in rows}


def test_equal_runs_do_not_differ(tmp_path: Path) -> None:
    assert named(new_run(tmp_path / "a"), new_run(tmp_path / "b")) == {}


def test_recipes(tmp_path: Path) -> None:
    """A key that one run does not have has its default; 2 is 2.0."""
    one = {"model": "resnet18", "lr": 0.1, "epochs": 2, "momentum": 0.9, "threads": 3}
    other = {"model": "resnet50", "lr": 0.4, "epochs": 2.0, "newer_key": [1]}
    runs = new_run(tmp_path / "a", values=one), new_run(tmp_path / "b", values=other)
    assert named(*runs) == {
        "recipe: model": ("resnet18", "resnet50"),
        "recipe: lr": (0.1, 0.4),
        "recipe: threads": (3, 0),
    }


def test_the_newest_recipe_counts(tmp_path: Path) -> None:
    change = {"position": 1, "step": 1, "values": {"model": "m", "lr": 0.4}, "digest": "x"}
    one = new_run(tmp_path / "a", values={"model": "m", "lr": 0.1}, changes=[change])
    assert named(one, new_run(tmp_path / "b", values={"model": "m", "lr": 0.4})) == {}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"data": "/a/photos"}, {"data": "/b/copy"}, {}),
        ({"fingerprint": "1"}, {"fingerprint": "2"}, {"data set: fingerprint": ("1", "2")}),
        (
            {"data": "/a/x", "fingerprint": "1"},
            {"data": "/a/y", "fingerprint": "2"},
            {"data set: name": ("x", "y")},
        ),
        ({"classes": ["a"]}, {"classes": ["a", "b"]}, {"data set: classes": (1, 2)}),
        ({}, {"start": {"source": "w", "sha256": "1"}}, {"weights: source": ("random", "w")}),
        (
            {"start": {"source": "a.pt", "sha256": "1"}},
            {"start": {"source": "copy.pt", "sha256": "1"}},
            {},
        ),
        (
            {"start": {"source": "a.pt", "sha256": "1"}},
            {"start": {"source": "a.pt", "sha256": "2"}},
            {"weights: sha256": ("1", "2")},
        ),
        ({}, {"masks": {"digest": "d" * 40, "step": 3}}, {"weights: masks": ("none", "d" * 12)}),
    ],
)
def test_sets_and_weights_are_known_by_their_hash(
    tmp_path: Path, one: Any, other: Any, expected: Any
) -> None:
    runs = new_run(tmp_path / "a", **one), new_run(tmp_path / "b", **other)
    assert named(*runs) == expected


def with_environment(run: Run, world: int, **facts: Any) -> Run:
    """The run with other facts in the environment of its attempts."""
    for file in run.path.glob("attempts/*/rank0*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for event in lines:
            if event["kind"] == "attempt":
                event["environment"] |= facts
                event["world"] = world
        file.write_text("".join(f"{json.dumps(event)}\n" for event in lines))
    for file in run.path.glob("attempts/*/rank0.summary.jsonl"):
        file.unlink()  # its spans are those of the first file
    return run


def test_machines_and_software(tmp_path: Path) -> None:
    one = RunMaker(tmp_path / "a", steps=40, dollars_per_h=2.0).attempt(0, 40).run
    other = RunMaker(tmp_path / "b", steps=40, dollars_per_h=3.0).attempt(0, 40).run
    facts = {"device": "H100", "torch": "2.15", "process": 7, "command": ["x"], "timm": None}
    with_environment(one, 1, torch="2.14", process=6, timm="1.0")
    with_environment(other, 4, **facts)
    assert named(one, other) == {
        "machine: device": ("a GPU", "H100"),
        "machine: ranks": (1, 4),
        "machine: machines": (1, 4),
        "machine: dollars an hour": (2.0, 3.0),
        "software: torch": ("2.14", "2.15"),
    }


def test_a_run_that_has_not_begun_has_no_machine(tmp_path: Path) -> None:
    trained = RunMaker(tmp_path / "a", steps=40).attempt(0, 40).run
    fresh = Run(tmp_path / "b")
    fresh.create(trained.record, "")
    assert named(trained, fresh) == {}
    traits = traits_of(fresh)
    assert (traits.state, traits.epochs_done, traits.top1) == ("new", None, None)
    assert accuracy_difference(traits, traits_of(trained)) is None


def test_three_runs_are_grouped_by_their_values(tmp_path: Path) -> None:
    values = [{"model": "m", "lr": lr} for lr in (0.1, 0.4, 0.1)]
    runs = [new_run(tmp_path / str(n), values=v) for n, v in enumerate(values)]
    (row,) = differences([traits_of(run) for run in runs])
    assert (row.values, row.groups) == ((0.1, 0.4, 0.1), ((0, 2), (1,)))


def test_results(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "a", steps=400).attempt(0, 250, None).attempt(200, 400).run
    traits, history = traits_of(run), history_of(run)
    last, ledger = history.evaluations[-1], history.ledger
    assert traits.top1 and traits.top1.share == last["top1"] / 800
    assert traits.images_per_s == ledger.images_per_s
    assert traits.epochs_done == pytest.approx(10)
    assert traits.epoch_s == pytest.approx(sum(ledger.parts.values()) / 10)
    assert traits.epoch_dollars() == pytest.approx(cost_of(run).total / 10)
    assert traits.limit == "compute"
    change = accuracy_difference(traits, traits)
    assert change and change.is_noise and change.difference == 0


def test_runs_of_an_earlier_version(tmp_path: Path) -> None:
    for name in ("finished-jpeg", "interrupted-raw-2"):
        shutil.copytree(FORMAT_1 / name, tmp_path / name)
    rows = named(Run(tmp_path / "finished-jpeg"), Run(tmp_path / "interrupted-raw-2"))
    assert rows["recipe: optimizer"] == ("sgd", "adamw")
    assert rows["machine: ranks"] == (1, 2)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        traits_of(Run(tmp_path))


@pytest.mark.parametrize(
    ("one", "other"), [(2, 2.0), (True, True), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([], [])]
)
def test_equal_values(one: Any, other: Any) -> None:
    assert identity_of(one) == identity_of(other)


@pytest.mark.parametrize(("one", "other"), [(True, 1), ("1", [1]), (0.1, 0.2), ("a", "A")])
def test_other_values(one: Any, other: Any) -> None:
    assert identity_of(one) != identity_of(other)


def test_values_as_text() -> None:
    values = [True, None, 0.1, "x", [1, "a"], {"b": 1}, object()]
    assert [value_text(v) for v in values] == [
        *("true", "null", "0.1", "x", '[1, "a"]', '{"b": 1}', "?")
    ]


def test_a_record_of_very_many_values_is_cut(tmp_path: Path) -> None:
    values = {"model": "m", **{f"key{n}": n for n in range(5000)}}
    settings = settings_of(history_of(new_run(tmp_path / "a", values=values)))
    assert len(settings) < 300
    assert isinstance(traits_of(Run(tmp_path / "a")), RunTraits)
