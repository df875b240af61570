"""The site file: what it may say, and whose it must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden import check_golden
from stoker.errors import BadRequest
from stoker.fleet.slurm.site import NAME, USUAL, find_site, read_site

GOOD = """
setup = ["module load cuda/12"]
[sbatch]
partition = "gpu"
cpus-per-task = 4
exclusive = true
requeue = false
"""
BAD = {
    "not toml": "setup = [",
    "other key": "partition = 'gpu'",
    "setup is no list": "setup = 'module load'",
    "setup is no text": "setup = [1]",
    "setup of two lines": 'setup = ["a\\nb"]',
    "setup with an escape": 'setup = ["\\u001b[2J"]',
    "sbatch is no table": "sbatch = 1",
    "no option": "[sbatch]\n'p x' = 1",
    "short option": "[sbatch]\n'-p' = 'x'",
    "value of two lines": '[sbatch]\npartition = "a\\n#SBATCH --wrap=x"',
    "value is a list": "[sbatch]\npartition = ['a']",
    "value is a fraction": "[sbatch]\nmem = 1.5",
    "ours": "[sbatch]\narray = '0-3'",
    "a command": "[sbatch]\nwrap = 'rm -r x'",
    "output": "[sbatch]\noutput = '/home/me/.ssh/authorized_keys'",
    "deep": "a = " + "[" * 100_000,
}

PYTHONS_OWN = ("not toml", "deep")
"""Refused in words that depend on the version of Python."""


def test_a_site_has_options_and_setup_lines(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(GOOD)
    site = read_site(path)
    assert site.options == {"partition": "gpu", "cpus-per-task": "4", "exclusive": ""}
    assert site.setup == ("module load cuda/12",)


def test_golden_refused_site_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = []
    for case, text in BAD.items():
        Path(NAME).write_text(text)
        with pytest.raises(BadRequest) as refusal:
            find_site(None)
        if case not in PYTHONS_OWN:
            lines += [f"{case}:", f"  {refusal.value}"]
    check_golden("slurm_site_files", lines)


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_site(None).path is None
    own = tmp_path / "home" / USUAL
    own.parent.mkdir(parents=True)
    own.write_text("[sbatch]\npartition = 'own'")
    assert find_site(None).options["partition"] == "own"
    Path(NAME).write_text("[sbatch]\npartition = 'here'")
    assert find_site(None).options["partition"] == "here"
    Path("named").write_text("[sbatch]\npartition = 'named'")
    assert find_site("named").options["partition"] == "named"
    with pytest.raises(BadRequest):
        find_site("missing")


def test_a_file_that_others_can_write_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its setup lines would run as the user's own."""
    monkeypatch.chdir(tmp_path)
    Path(NAME).write_text(GOOD)
    Path(NAME).chmod(0o666)
    with pytest.raises(BadRequest, match="--site"):
        find_site(None)
    assert find_site(NAME).setup
    Path(NAME).chmod(0o644)
    assert find_site(None).setup
    monkeypatch.setattr("os.geteuid", lambda: Path(NAME).stat().st_uid + 1)
    if Path(NAME).stat().st_uid:
        with pytest.raises(BadRequest, match="--site"):
            find_site(None)
