"""Bytes, bits and events stay as they were pinned, whatever is moved or renamed.

`python tests/compat/make.py --pins` writes the pins again where a change is intended.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from chaos.trainers import Trainers
from compat.kept import PINS, bits_of, difference
from compat.pins import CODECS_AND_TABLES, events_of, pinned_runs, raw_bytes, shapes_of, train
from stoker.run.events import Event

PINNED: dict[str, Any] = json.loads(PINS.read_bytes())
TIMED = {"larger_batch", "note", "probe", "stall"}
"""Kinds that are written or not by how fast the machine is."""


@pytest.fixture(scope="module")
def hashes() -> dict[str, Any]:
    return raw_bytes()


@pytest.fixture(scope="module")
def results(
    pinned_trainers: Trainers, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, dict[str, str]], list[Event]]:
    """The bits of each pinned run, and the events of all."""
    bits, events = {}, []
    for name, recipe, codec, ranks in pinned_runs():
        run = train(pinned_trainers, recipe, codec, ranks, tmp_path_factory.mktemp("pinned"))
        bits[name] = bits_of(run)
        events += events_of(run)
    return bits, events


def other_libraries(*names: str) -> str:
    """Which of some libraries have another version than the one pinned with."""
    pinned = PINNED["versions"]
    return ", ".join(
        f"{name} is {version(name)}, pinned with {pinned[name]}"
        for name in names
        if version(name) != pinned[name]
    )


@pytest.mark.parametrize("codec", PINNED["packing"])
def test_packing_writes_the_same_files(codec: str, hashes: dict[str, Any]) -> None:
    actual, pinned = hashes["packing"][codec], PINNED["packing"][codec]
    assert actual.keys() == pinned.keys()
    shards = {name for name in pinned if name.endswith(".tar")}
    assert {n: actual[n] for n in shards} == {n: pinned[n] for n in shards}, (
        other_libraries(*CODECS_AND_TABLES) or "with the same libraries"
    )
    if reason := other_libraries("pyarrow"):
        pytest.skip(f"shards agree; tables and what holds their hash are not compared: {reason}")
    assert actual == pinned


def test_batches_have_the_same_bytes(hashes: dict[str, Any]) -> None:
    assert hashes["batches"] == PINNED["batches"], (
        other_libraries(*CODECS_AND_TABLES) or "with the same libraries"
    )


@pytest.mark.parametrize("name", PINNED["bits"])
def test_training_gives_the_same_bits(
    name: str, results: tuple[dict[str, dict[str, str]], list[Event]]
) -> None:
    assert results[0].keys() == PINNED["bits"].keys()
    if reason := difference(PINNED["versions"]):
        pytest.skip(f"the bits are not compared: {reason}")
    assert results[0][name] == PINNED["bits"][name]


ADDED = {
    "step": {"cores"},
    "attempt": {
        *("environment.opencv", "environment.simplejpeg", "environment.timm"),
        *("environment.isa", "torn_reasons"),
        *("environment.driver", "environment.cudnn"),
        *("local_rank", "machine", "machine.boot", "machine.command_s", "machine.began_s"),
    },
    "end": {"clock_s"},
}
"""Fields of events that came after the pins: a reader of older runs does without them."""


ADDED_KINDS = {"machine"}
"""The same, of whole kinds."""


def test_events_have_the_same_kinds_and_fields(
    results: tuple[dict[str, dict[str, str]], list[Event]],
) -> None:
    actual, pinned = shapes_of(results[1]), PINNED["events"]
    assert actual.keys() - TIMED - ADDED_KINDS == pinned.keys() - TIMED
    for kind in actual.keys() & pinned.keys():
        now, then = actual[kind], pinned[kind]
        fields = {**now["always"], **now["sometimes"]}
        pinned_fields = {**then["always"], **then["sometimes"]}
        fields = {name: types for name, types in fields.items() if name not in ADDED.get(kind, ())}
        assert fields.keys() == pinned_fields.keys(), kind
        assert then["always"].keys() <= now["always"].keys(), kind
        for name, types in fields.items():
            assert set(types) <= set(pinned_fields[name]), (kind, name)


def test_pins_name_no_place_of_a_machine() -> None:
    text = Path(PINS).read_text()
    assert "/" not in text.replace("train/", "").replace("val/", "").replace("test/", "")
