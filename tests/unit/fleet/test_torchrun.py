"""Several ranks are started by torchrun, with the user's words exactly as they were typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.fleet.torchrun import LAUNCHED, SHUTDOWN_S, command, is_launched, launch

ODD_WORDS = [
    "train",
    "my photos; touch pwned",
    "--run",
    "$(touch pwned)",
    "--model=a'b\"c",
    "*",
    "",
]


def value_of(flag: str, words: list[str]) -> str:
    return words[words.index(flag) + 1]


def test_the_ranks_run_the_same_python_and_the_same_words() -> None:
    words = command(2, ODD_WORDS)
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert words[-len(ODD_WORDS) - 3 :] == ["-m", "--", "stoker", *ODD_WORDS]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_as_many_as_were_asked_for_on_this_machine_alone(ranks: int) -> None:
    words = command(ranks, ["train", "photos"])
    assert value_of("--nproc-per-node", words) == str(ranks)
    assert "--standalone" in words


def test_stop_signals_are_passed_on_and_there_is_time_to_save() -> None:
    words = command(2, ["train", "photos"])
    signals = value_of("--signals-to-handle", words).split(",")
    assert set(signals) >= {"SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"}
    assert int(value_of("--shutdown-timeout", words)) == SHUTDOWN_S >= 60


def test_flags_of_the_user_are_not_taken_for_torchruns() -> None:
    words = command(2, ["train", "photos", "--nproc-per-node", "9", "--help"])
    assert words.index("--nproc-per-node") < words.index("stoker") < words.index("--help")
    assert value_of("--nproc-per-node", words) == "2"


def test_who_was_launched_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LAUNCHED, raising=False)
    assert not is_launched()
    monkeypatch.setenv(LAUNCHED, "1")
    assert is_launched()


@pytest.mark.timeout(120)
def test_odd_words_reach_a_rank_unharmed_and_no_shell_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    word = "my 'photos'; touch pwned $(touch pwned) *"
    log = tmp_path / "launcher.log"
    assert launch(1, [word], log) != 0
    assert f"stoker: no verb called '{word}'" in log.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["launcher.log"]
