"""No process imports modules from the working directory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stoker
from hostile_modules import hostile_folder, imported, imported_by_python_m, stoker_command
from stoker.fleet import launcher
from stoker.fleet.workers import map_tasks, safe_children
from stoker.safe_path import SAFE, drop_working_directory, is_command
from stoker.survive.rehearsal import Reader

pytestmark = pytest.mark.exact


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of this process, as that of a library's user."""
    folder = hostile_folder(tmp_path / "hostile")
    monkeypatch.chdir(folder)
    monkeypatch.delenv(SAFE, raising=False)
    return folder


def test_a_rank_imports_nothing_from_here(hostile: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        rank = launcher.start(["no-such-verb"], dict(os.environ), log)
    assert (rank.wait(), imported(hostile)) == (2, [])
    assert "no verb called 'no-such-verb'" in (tmp_path / "log").read_text()


def test_workers_import_nothing_from_here(hostile: Path) -> None:
    assert sorted(map_tasks(abs, [-1, -2, -3], 2)) == [1, 2, 3]
    assert imported(hostile) == []
    assert SAFE not in os.environ


def test_the_process_that_reads_a_checkpoint_back_imports_nothing_from_here(hostile: Path) -> None:
    reader = Reader()
    try:
        with pytest.raises(Exception, match="no-such-folder"):
            reader.read(hostile / "no-such-folder")
    finally:
        reader.close()
    assert imported(hostile) == []


SCRIPT = """
import beside
from stoker.fleet.workers import map_tasks
if __name__ == "__main__":
    print(sorted(map_tasks(beside.double, [1, 2, 3], 2)))
"""


def test_workers_of_a_script_still_import_the_modules_beside_it(
    hostile: Path, tmp_path: Path
) -> None:
    """A worker imports the script again, and functions that the script imports."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, imported(hostile)) == ("[2, 4, 6]\n", []), done.stderr


def run_in(folder: Path, command: list[str], path: str) -> tuple[int, list[str]]:
    """The exit code of a command in a hostile folder, and what any process imported from there."""
    variables = {name: text for name, text in os.environ.items() if name != SAFE}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**variables, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return done.returncode, imported(folder)


HERE = str(Path(stoker.__file__).parents[1])


@pytest.mark.parametrize("path", [HERE, f"{HERE}:", f":{HERE}", f"{HERE}::"])
@pytest.mark.parametrize("start", ["stoker", "python -m stoker"])
def test_the_command_imports_nothing_from_here(tmp_path: Path, start: str, path: str) -> None:
    """Python itself puts the working directory first for -m and for an empty entry of PYTHONPATH:
    what it has imported from there by then cannot be helped."""
    words, early = stoker_command(tmp_path), frozenset[str]()
    if start != "stoker":
        words = [sys.executable, "-m", "stoker"]
    if start != "stoker" or path != HERE:
        early = imported_by_python_m(tmp_path) | {"stoker", "sitecustomize", "usercustomize"}
    folder = hostile_folder(tmp_path / "hostile", except_for=early)
    assert run_in(folder, [*words, "show-config"], path) == (0, [])


@pytest.mark.parametrize(
    ("argv", "orig_argv", "expected"),
    [
        (["-m", "pack"], ["python", "-m", "stoker", "pack"], True),
        (["-m"], ["python", "-B", "-mstoker"], True),
        (["-m", "stoker"], ["python", "-m", "other", "stoker"], False),
        (["-m"], ["python", "-m", "other.stoker"], False),
        (["/x/bin/stoker", "pack"], ["python", "/x/bin/stoker", "pack"], True),
        (["/x/train.py"], ["python", "/x/train.py"], False),
        (["-c"], ["python", "-c", "import stoker"], False),
        ([""], ["python"], False),
        ([], [], False),
    ],
)
def test_a_program_that_uses_the_library_keeps_its_path(
    argv: list[str], orig_argv: list[str], expected: bool
) -> None:
    assert is_command(argv, orig_argv) == expected


@pytest.mark.parametrize(
    ("variable", "path", "remaining"),
    [
        ("", ["HERE", "/lib"], ["/lib"]),
        ("/x", ["HERE", "/x", "/lib"], ["/x", "/lib"]),
        ("/x:", ["HERE", "/x", "HERE", "/lib"], ["/x", "/lib"]),
        ("/x:/x::", ["HERE", "/x", "HERE", "/lib"], ["/x", "/lib"]),
        # The user has named these, or a package is installed from here.
        ("{}:/x", ["HERE", "HERE", "/x", "/lib"], ["HERE", "/x", "/lib"]),
        ("{}::/x", ["HERE", "HERE", "/x", "/lib"], ["HERE", "/x", "/lib"]),
        ("", ["HERE", "/lib", "HERE"], ["/lib", "HERE"]),
    ],
)
def test_only_what_the_user_named_remains(
    tmp_path: Path, variable: str, path: list[str], remaining: list[str]
) -> None:
    here = str(tmp_path)
    variable = variable.format(here)
    paths = [entry.replace("HERE", here) for entry in path]
    variables = {"PYTHONPATH": variable, "OTHER": "1"}
    drop_working_directory(paths, variables, here, first=True)
    assert paths == [entry.replace("HERE", here) for entry in remaining]
    named = {"PYTHONPATH": variable.strip(":").replace("::", ":")} if variable else {}
    assert variables == {**named, "OTHER": "1", SAFE: "1"}


def test_a_variable_of_the_caller_comes_back_whatever_threads_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SAFE, "")
    inside = threading.Barrier(2)

    def start_children() -> None:
        inside.wait()
        for _ in range(200):
            with safe_children():
                assert os.environ[SAFE] == "1"

    threads = [threading.Thread(target=start_children) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.environ[SAFE] == ""
