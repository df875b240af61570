"""What runs the other tests: one that goes wrong leaves the next a server in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.recipes import command
from chaos.trainers import TookTooLong, Trainers
from stoker.errors import BAD_REQUEST

ENDLESS = 100_000


def test_a_run_that_never_ends_is_ended_and_named(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path
) -> None:
    argv = command(packed_sets, tmp_path / "run", "raw, sgd, phases", epochs=ENDLESS)
    with pytest.raises(TookTooLong, match="still at it after 1 s"):
        trainers.train(argv, tmp_path / "log", ranks=2, within_s=1)
    assert trainers.train(["train"], tmp_path / "log") == [BAD_REQUEST]


def test_a_test_that_fails_meanwhile_takes_its_run_along(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path
) -> None:
    def fail(pids: list[int]) -> None:
        raise ValueError(pids)

    argv = command(packed_sets, tmp_path / "run", "raw, sgd, phases", epochs=ENDLESS)
    with pytest.raises(ValueError) as caught:
        trainers.train(argv, tmp_path / "log", meanwhile=fail)
    assert not any(Path(f"/proc/{pid}").exists() for pid in caught.value.args[0])
    assert trainers.train(["train"], tmp_path / "log") == [BAD_REQUEST]
