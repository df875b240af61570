"""Masters and settings as a user types them, and what this machine lacks."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ports import free_port
from stoker.errors import BadRequest, StokerError
from stoker.fleet.spark.master import (
    addresses,
    is_local,
    is_master,
    require_answer,
    require_installed,
    settings_of,
)


@pytest.mark.parametrize(
    ("master", "pairs"),
    [
        ("spark://head:7077", [("head", 7077)]),
        ("spark://10.0.0.1:7077,other.example:7078", [("10.0.0.1", 7077), ("other.example", 7078)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("local[2]", []),
        ("local[*]", []),
        ("local", []),
    ],
)
def test_masters(master: str, pairs: list[tuple[str, int]]) -> None:
    assert is_master(master)
    assert addresses(master) == pairs
    assert is_local(master) == (not pairs)


@pytest.mark.parametrize(
    "master",
    [
        *("spark://", "spark://head", "spark://head:0", "spark://head:70000", "spark://head:x"),
        *("spark://a b:7077", "spark://head:7077/x", "spark://u:p@head:7077", "local[0]"),
        *("local[x]", "local[", "spark://head:7077,"),
    ],
)
def test_what_is_no_master_is_refused(master: str) -> None:
    assert is_master(master)
    with pytest.raises(BadRequest, match=r"expected spark://HOST:PORT or local\[N\]"):
        addresses(master)


@pytest.mark.parametrize("name", ["slurm", "localhost", "yarn", "/local", "k8s://x"])
def test_other_places_are_no_masters(name: str) -> None:
    assert not is_master(name)


def test_settings() -> None:
    words = ["spark.executor.memory=4g", "spark.a.b=x=y", "spark.empty="]
    assert settings_of(words) == {
        "spark.executor.memory": "4g",
        "spark.a.b": "x=y",
        "spark.empty": "",
    }
    assert settings_of([]) == {}


@pytest.mark.parametrize("word", ["spark.executor.memory", "memory=4g", "=x", "spark.a b=1", ""])
def test_a_wrong_setting_is_refused_without_its_value(word: str) -> None:
    with pytest.raises(BadRequest, match="KEY=VALUE"):
        settings_of([word])
    with pytest.raises(BadRequest) as caught:
        settings_of(["password=secret123"])
    assert "secret123" not in str(caught.value)


def test_a_master_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_answer(f"spark://127.0.0.1:{server.getsockname()[1]}")
    require_answer("local[2]")


def test_no_master_is_told_at_once() -> None:
    with pytest.raises(StokerError, match=r"no Spark master answers at spark://127\.0\.0\.1"):
        require_answer(f"spark://127.0.0.1:{free_port()}")


class TestThisMachine:
    def test_without_pyspark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stoker.fleet.spark.master.find_spec", lambda name: None)
        with pytest.raises(BadRequest, match="pip install pyspark"):
            require_installed()

    @pytest.mark.parametrize("home", [True, False])
    def test_without_java(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: bool
    ) -> None:
        monkeypatch.setattr("stoker.fleet.spark.master.find_spec", lambda name: object())
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        if home:
            monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(BadRequest, match="JAVA_HOME" if home else "no java is in PATH"):
            require_installed()

    def test_with_both(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("stoker.fleet.spark.master.find_spec", lambda name: object())
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").touch(mode=0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        require_installed()
