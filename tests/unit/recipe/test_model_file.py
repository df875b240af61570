"""`--model ./net.py:build` is a name, a path and the hash of a text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from own_models import NET, write
from stoker.errors import BadRequest
from stoker.recipe import model_file
from stoker.recipe.changes import CONSENT, HARMLESS, changes
from stoker.recipe.model_file import is_own, label_of, own_model, read_code
from stoker.recipe.resolve import Resolved, resolve, show_config, with_code

pytestmark = pytest.mark.exact


def resolved(model: str, recipe: str | None = None) -> Resolved:
    """As a command resolves it: with the hash of the text."""
    made = resolve(recipe, {"model": model} if model else {})
    path = Path(made.recipe.model_file)
    return with_code(made, read_code(path, "build"))


class TestNames:
    @pytest.mark.parametrize(
        "name", ["net.py:build", "./a b/net.py:Net", "/x/ünet.py:b", "a.b.py:c"]
    )
    def test_a_file_and_a_function_are_a_model_of_ones_own(self, name: str) -> None:
        assert is_own(name)

    @pytest.mark.parametrize("name", ["resnet9", "resnet50.a1_in1k", "hf-hub:timm/resnet18"])
    def test_other_names_are_left_alone(self, name: str) -> None:
        assert not is_own(name)
        assert own_model({"model": name}) == {}
        assert label_of(name) == name

    @pytest.mark.parametrize(
        "name",
        ["net.py", "net:build", "./net", "/etc/net", "~/net", "net.py:", "net.py:1", "x.py:a b"],
    )
    def test_half_a_name_is_refused_with_the_whole_one(self, name: str) -> None:
        with pytest.raises(BadRequest, match=r"\.py:build"):
            own_model({"model": name})

    def test_the_path_is_that_of_the_callers_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        values = own_model({"model": "nets/../nets/net.py:build"})
        assert values == {"model": "net.py:build", "model_file": f"{tmp_path}/nets/net.py"}

    def test_a_directory_that_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        with pytest.raises(BadRequest, match="no such place"):
            own_model({"model": "net.py:build"})
        os.chdir(tmp_path)

    def test_the_label_is_part_of_a_folders_name(self) -> None:
        assert label_of("net.py:build") == "net"


class TestText:
    def test_line_ends_and_a_mark_at_the_start_do_not_count(self, tmp_path: Path) -> None:
        plain = read_code(write(tmp_path), "build")
        (tmp_path / "other.py").write_bytes(b"\xef\xbb\xbf" + NET.replace("\n", "\r\n").encode())
        assert read_code(tmp_path / "other.py", "build").digest == plain.digest

    def test_every_other_character_counts(self, tmp_path: Path) -> None:
        texts = [NET, NET + "\n", NET.replace("0.2", "0.3"), NET + "# \x0c\n", NET + "#  \n"]
        paths = [write(tmp_path, text, f"net{n}.py") for n, text in enumerate(texts)]
        assert len({read_code(path, "build").digest for path in paths}) == len(texts)

    def test_no_file_is_for_the_caller_to_answer(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_code(tmp_path / "net.py", "build")

    @pytest.mark.parametrize(
        "data", [b"\xff\xfe", b"x = 1\0", b"#" * (model_file.LARGEST_TEXT + 1)]
    )
    def test_what_is_no_text_of_a_model_is_refused(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "net.py").write_bytes(data)
        with pytest.raises(BadRequest, match=r"net\.py"):
            read_code(tmp_path / "net.py", "build")

    def test_a_folder_and_a_pipe_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "folder.py").mkdir()
        os.mkfifo(tmp_path / "pipe.py")
        for name in ("folder.py", "pipe.py"):
            with pytest.raises(BadRequest, match="not a file"):
                read_code(tmp_path / name, "build")


class TestRecipe:
    def test_another_place_is_the_same_recipe_and_another_text_is_not(self, tmp_path: Path) -> None:
        here = resolved(f"{write(tmp_path / 'a')}:build").recipe
        there = resolved(f"{write(tmp_path / 'b')}:build").recipe
        other = resolved(f"{write(tmp_path / 'c', NET + '# more')}:build").recipe
        assert here.digest() == there.digest() != other.digest()
        kinds = [(c.name, c.kind) for c in changes(here.values(), there.values())]
        assert kinds == [("model_file", HARMLESS)]
        kinds = [(c.name, c.kind) for c in changes(here.values(), other.values())]
        assert kinds == [("model_code", CONSENT), ("model_file", HARMLESS)]

    def test_what_show_config_prints_is_the_same_recipe(self, tmp_path: Path) -> None:
        first = resolved(f"{write(tmp_path)}:build")
        (tmp_path / "mine.toml").write_text(show_config(first))
        again = resolved("", str(tmp_path / "mine.toml"))
        assert again.recipe == first.recipe

    def test_a_recipe_for_another_text_is_refused_by_its_line(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text(show_config(resolved(f"{write(tmp_path)}:build")))
        write(tmp_path, NET + "# more")
        with pytest.raises(BadRequest, match=r"mine\.toml:\d+: .*net\.py"):
            resolved("", str(tmp_path / "mine.toml"))
        assert resolved(f"{tmp_path}/net.py:build", str(tmp_path / "mine.toml")).recipe.model_code

    def test_another_model_forgets_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text(show_config(resolved(f"{write(tmp_path)}:build")))
        other = resolve(str(tmp_path / "mine.toml"), {"model": "resnet9"}).recipe
        assert (other.model_file, other.model_code) == ("", "")
