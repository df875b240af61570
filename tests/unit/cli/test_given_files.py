"""Files that a user names on the command line, of any kind and content: one line, and no wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.errors import BAD_REQUEST

COMMANDS = {
    "recipe": "show-config --recipe x.toml",
    "bench table": "bench table x.toml",
    "claims": "plan --check x.toml",
    "site": "launch slurm --site x.toml --dry-run -- train photos",
    "log": "explain x.toml",
    "model": "show-config --model ./x.toml:build",
}
LONGEST_LINE = 500


def no_writer(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nested(path: Path) -> None:
    path.write_text("setup = " + "[" * 50_000)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [no_writer, endless, nested])
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_file_that_cannot_be_one(
    words: str,
    make: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x.toml")
    assert main(words.split()) == BAD_REQUEST
    message = capsys.readouterr().err
    assert "x.toml" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("form", ["a" * 3_000_000 + " = 1", "['" + "b-" * 1_500_000 + "']\nlr = 1"])
def test_a_key_of_three_megabytes(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took 20 seconds to search for its line, and was printed."""
    (tmp_path / "x.toml").write_text(f"epochs = 3\n{form}\n")
    assert main(["show-config", "--recipe", str(tmp_path / "x.toml")]) == BAD_REQUEST
    message = capsys.readouterr().err
    assert "x.toml:2: unknown " in message
    assert len(message) < len(str(tmp_path)) + LONGEST_LINE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs = " + "9" * 5000, "not valid TOML: Exceeds the limit"),
        ("lr = '" + "x" * 100_000 + "'", "lr must be a number, not 'xxx"),
        ("# " + "x" * (1 << 22), "it is larger than 4,194,304 bytes"),
    ],
)
def test_a_recipe_with_far_too_much(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text(text)
    assert main(["show-config", "--recipe", str(tmp_path / "x.toml")]) == BAD_REQUEST
    message = capsys.readouterr().err
    assert words in message
    assert len(message) < len(str(tmp_path)) + LONGEST_LINE


def test_the_output_of_a_command_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--site <(command)`: a pipe, whose writer has ended."""
    monkeypatch.chdir(tmp_path)
    reader, writer = os.pipe()
    os.write(writer, b"setup = ['module load x']\n")
    os.close(writer)
    words = ["launch", "slurm", "--site", f"/dev/fd/{reader}", "--dry-run", "--", "train", "photos"]
    main(words)  # there are no photos
    os.close(reader)
    assert "module load x" in capsys.readouterr().err
