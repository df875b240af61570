"""The run keeps each text of its model; a stranger's text needs the user's word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from own_models import NET, write
from stoker.errors import BadRequest
from stoker.recipe.model_file import ModelCode, read_code
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import Resolved, resolve, show_config, with_code
from stoker.run.directory import Run
from stoker.run.model_code import code_of_run, code_to_train, keep_code, kept_code

pytestmark = pytest.mark.exact


def record(recipe: Recipe) -> dict[str, Any]:
    return {
        "format": 1,
        "recipe": "x",
        "digest": recipe.digest(),
        "values": recipe.values(),
        "data": "/data",
        "fingerprint": "f",
        "classes": ["a", "b"],
        "lanes": 1,
        "created": 0.0,
        "changes": [],
    }


@pytest.fixture
def named(tmp_path: Path) -> Resolved:
    """What `--model .../net.py:build` resolves to."""
    return resolve(flags={"model": f"{write(tmp_path)}:build"})


@pytest.fixture
def run(tmp_path: Path, named: Resolved) -> Run:
    """A run that was trained with that file."""
    code = code_to_train(named, None)
    assert code
    run = Run(tmp_path / "run")
    keep_code(run, code)
    run.create(record(with_code(named, code).recipe), "")
    return run


def change(run: Run, named: Resolved, code: ModelCode) -> None:
    keep_code(run, code)
    recipe = with_code(named, code).recipe
    run.change_recipe(recipe, "", 0, 0)


class TestKeeping:
    def test_each_text_is_kept_under_the_number_of_its_recipe(
        self, run: Run, named: Resolved, tmp_path: Path
    ) -> None:
        code = read_code(tmp_path / "net.py", "build")
        other = replace(code, text=NET + "# other\n")
        change(run, named, code)
        change(run, named, other)
        change(run, named, code)
        names = sorted(path.name for path in run.path.glob("model*.py"))
        assert names == ["model-3.py", "model.py"]
        assert (run.path / "model-3.py").read_text() == other.text
        for text in (code, other):
            kept = kept_code(run, text.digest)
            assert kept and kept.text == text.text

    def test_a_text_that_never_became_part_of_the_run_is_replaced(
        self, run: Run, tmp_path: Path
    ) -> None:
        code = read_code(tmp_path / "net.py", "build")
        keep_code(run, replace(code, text="1\n"))  # and then the process was killed
        keep_code(run, replace(code, text="2\n"))
        assert (run.path / "model-2.py").read_text() == "2\n"

    def test_nothing_is_kept_of_other_models(self, tmp_path: Path) -> None:
        keep_code(Run(tmp_path / "run"), None)
        assert not (tmp_path / "run").exists()

    def test_links_and_damaged_files_do_not_count(self, run: Run, named: Resolved) -> None:
        digest = str(run.values["model_code"])
        (run.path / "model-2.py").write_bytes(b"\xff\xfe")
        assert kept_code(run, digest)
        (run.path / "model.py").rename(run.path.parent / "outside.py")
        (run.path / "model.py").symlink_to(run.path.parent / "outside.py")
        assert kept_code(run, digest) is None


class TestUsing:
    """evaluate, predict, export."""

    def test_other_models_have_no_code(self, tmp_path: Path) -> None:
        run = Run(tmp_path / "plain")
        run.create(record(Recipe()), "")
        assert code_of_run(run) is None

    def test_a_strangers_code_is_not_run(self, run: Run) -> None:
        with pytest.raises(BadRequest, match="--trust-code"):
            code_of_run(run)
        code = code_of_run(run, trusted=True)
        assert code and (code.text, code.function) == (NET, "build")

    @pytest.mark.parametrize("ending", ["", ":build"])
    def test_a_file_of_the_same_text_is(self, run: Run, tmp_path: Path, ending: str) -> None:
        code = code_of_run(run, f"{tmp_path}/net.py{ending}")
        assert code and (code.path, code.function) == (tmp_path / "net.py", "build")

    def test_a_file_of_another_text_is_not(self, run: Run, tmp_path: Path) -> None:
        write(tmp_path, NET + "# more")
        with pytest.raises(BadRequest, match=r"model\.py"):
            code_of_run(run, f"{tmp_path}/net.py")
        with pytest.raises(BadRequest, match="no such file"):
            code_of_run(run, f"{tmp_path}/nothing.py")

    def test_a_copy_that_is_gone(self, run: Run) -> None:
        (run.path / "model.py").unlink()
        with pytest.raises(BadRequest, match="keeps no copy"):
            code_of_run(run, trusted=True)

    def test_a_copy_that_was_changed_is_not_run(self, run: Run) -> None:
        (run.path / "model.py").write_text("import os\n")
        with pytest.raises(BadRequest, match="keeps no copy"):
            code_of_run(run, trusted=True)


class TestTraining:
    def test_the_file_that_the_user_names(self, run: Run, named: Resolved) -> None:
        for place in (None, run):
            code = code_to_train(named, place)
            assert code and code.text == NET

    def test_a_recipe_that_names_code_is_no_request_to_run_it(
        self, named: Resolved, tmp_path: Path
    ) -> None:
        (tmp_path / "theirs.toml").write_text(show_config(named))
        theirs = resolve(str(tmp_path / "theirs.toml"))
        with pytest.raises(BadRequest, match=r"theirs\.toml:1 .*--trust-code"):
            code_to_train(theirs, None)
        assert code_to_train(theirs, None, trusted=True)

    def test_a_file_that_is_gone_is_replaced_with_consent(
        self, run: Run, named: Resolved, tmp_path: Path
    ) -> None:
        (tmp_path / "net.py").unlink()
        with pytest.raises(BadRequest, match=r"model\.py .*--trust-code"):
            code_to_train(named, run)
        code = code_to_train(named, run, trusted=True)
        assert code and code.path == run.path / "model.py"
        for place in (None, Run(tmp_path / "new")):
            with pytest.raises(BadRequest, match=r"no such file$"):
                code_to_train(named, place, trusted=True)

    def test_the_copy_of_another_model_is_not_proposed(self, run: Run, tmp_path: Path) -> None:
        other = resolve(flags={"model": f"{tmp_path}/other.py:build"})
        with pytest.raises(BadRequest, match=r"no such file$"):
            code_to_train(other, run, trusted=True)

    def test_a_rank_runs_the_text_that_its_launcher_read(
        self, run: Run, named: Resolved, tmp_path: Path
    ) -> None:
        expected = read_code(tmp_path / "net.py", "build").digest
        write(tmp_path, NET + "# edited while the run began")
        code = code_to_train(named, run, expected=expected)
        assert code and code.digest == expected
        with pytest.raises(BadRequest, match="give the command again"):
            code_to_train(named, Run(tmp_path / "new"), expected=expected)
