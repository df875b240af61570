"""The batch file: readable, and safe whatever the names in it are."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import check_golden
from stoker.errors import BadRequest
from stoker.fleet.slurm.batch import (
    BatchJob,
    batch_text,
    grace_s,
    limit_s,
    name_of,
    sbatch_line,
)

JOB = BatchJob(
    name="train-photos",
    words=["train", "my photos", "--run", "runs/a b"],
    folder=Path("/home/me/jobs/train-photos"),
    options={"time": "4:00:00", "partition": "gpu", "comment": 'a "b" \\c', "exclusive": ""},
    setup=["module load cuda/12"],
    progress=[Path("runs/a b")],
)
HERE = Path("/home/me")


def plain(text: str) -> list[str]:
    return text.replace(shlex.quote(sys.executable), "python").splitlines()


def test_golden_batch_files() -> None:
    pair = replace(JOB, options={"nodes": "2", "cpus-per-task": "4"}, setup=())
    array = replace(JOB, words=["work", "grid", "--plan", "abc"], tasks=8, options={}, setup=())
    texts = [plain(batch_text(job, HERE)) for job in (JOB, pair, array)]
    check_golden("slurm_batch_files", [line for text in texts for line in [*text, "=" * 40]])


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "))))
def test_words_reach_the_command_as_they_are(words: list[str]) -> None:
    text = batch_text(replace(JOB, words=words), HERE)
    (line,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert shlex.split(line)[1:] == [sys.executable, "-P", "-m", "stoker", *words]


@pytest.mark.parametrize(
    "bad", ["a\nb", "a\rb", "a\x1b[0m", "a\0", "a\u2028b", "a\udcff", "\u202e"]
)
def test_control_characters_are_refused_everywhere(bad: str) -> None:
    jobs = [
        replace(JOB, name=bad),
        replace(JOB, words=["train", bad]),
        replace(JOB, folder=Path("/x") / bad),
        replace(JOB, options={"comment": bad}),
        replace(JOB, progress=[Path(bad)]),
    ]
    for job in jobs:
        with pytest.raises(BadRequest):
            batch_text(job, HERE)
    with pytest.raises(BadRequest):
        batch_text(JOB, Path("/x") / bad)


def test_the_file_is_one_that_bash_can_read() -> None:
    job = replace(
        JOB, words=["train", "$(touch x)", "`y`", "';z", '"', "#"], options={"nodes": "3"}
    )
    text = batch_text(job, Path("/tmp/a 'b' $(c)"))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    lines = text.splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options == list(range(2, 2 + len(options))), "sbatch stops at the first command"


def test_the_environment_is_not_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "very-secret")
    assert "very-secret" not in batch_text(JOB, HERE)


def test_output_goes_below_any_folder_but_a_backslash() -> None:
    text = batch_text(replace(JOB, folder=Path("/a 50%/b")), HERE)
    assert '#SBATCH --output="/a 50%%/b/slurm-%j.txt"' in text
    with pytest.raises(BadRequest):
        batch_text(replace(JOB, folder=Path("/a\\b")), HERE)


@pytest.mark.parametrize("nodes", ["0", "two", "-1", "1-4", "", "9" * 20, "²"])
def test_nodes_are_a_number(nodes: str) -> None:
    with pytest.raises(BadRequest):
        batch_text(replace(JOB, options={"nodes": nodes}), HERE)


def test_values_are_quoted_where_sbatch_needs_it() -> None:
    assert sbatch_line("gres", "gpu:a100:2") == "#SBATCH --gres=gpu:a100:2"
    assert sbatch_line("comment", 'x # "y" \\z') == '#SBATCH --comment="x # \\"y\\" \\\\z"'
    assert sbatch_line("exclusive", "") == "#SBATCH --exclusive"


LIMITS = {
    "30": 1800,
    "1:30": 90,
    "4:00:00": 14400,
    "2-0": 172800,
    "1-2:30": 95400,
    "1-2:30:10": 95410,
    "": None,
    "INFINITE": None,
    "soon": None,
}


@pytest.mark.parametrize(("text", "seconds"), LIMITS.items())
def test_limits_are_read_as_slurm_does(text: str, seconds: int | None) -> None:
    assert limit_s(text) == seconds


def test_a_short_limit_has_a_short_grace() -> None:
    assert [grace_s(text) for text in ("1", "2", "10", "60", "", "1-0")] == [
        10,
        20,
        100,
        120,
        120,
        120,
    ]


def test_names_become_folders() -> None:
    assert name_of("a b/../$(c)") == "a-b-..-c"
    assert name_of("../..") == "job"
    assert name_of("x" * 300) == "x" * 100
