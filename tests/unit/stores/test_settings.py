"""Where the cache is, how much it may take, and how long a store may fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from golden import check_golden
from stoker.errors import BadRequest
from stoker.stores.cache import FileCache, Wanted
from stoker.stores.patience import PATIENCE_S
from stoker.stores.settings import cache_folder, cache_limit, open_cache, store_patience


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"STOKER_CACHE": "/scratch/cache", "XDG_CACHE_HOME": "/elsewhere"}, "/scratch/cache"),
        ({"XDG_CACHE_HOME": "/elsewhere"}, "/elsewhere/stoker"),
        ({}, "~/.cache/stoker"),
        ({"STOKER_CACHE": "~/own"}, "~/own"),
    ],
)
def test_the_folder_of_the_cache(variables: dict[str, str], folder: str) -> None:
    assert cache_folder(variables) == Path(folder).expanduser()


def test_a_relative_folder_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_folder({"STOKER_CACHE": "here"}) == tmp_path / "here"


@pytest.mark.parametrize(
    ("text", "limit"), [("", None), ("0", 0), ("1.5", 1_500_000_000), ("0.000001", 1000)]
)
def test_the_limit_of_the_cache(text: str, limit: int | None) -> None:
    assert cache_limit(Path("cache"), {"STOKER_CACHE_GB": text}) == limit


@pytest.mark.parametrize("text", ["-1", "much", "nan", "inf", "1e12", "1 GB"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="STOKER_CACHE_GB"):
        cache_limit(Path("cache"), {"STOKER_CACHE_GB": text})


def test_without_a_limit_half_of_the_free_disk_is_used(tmp_path: Path) -> None:
    variables = {"STOKER_CACHE": str(tmp_path / "cache")}
    free = shutil.disk_usage(tmp_path).free
    assert 0.2 * free < open_cache(variables).limit_bytes < 0.8 * free
    limited = open_cache({**variables, "STOKER_CACHE_GB": "0.001"})
    assert limited.limit_bytes == 1_000_000


def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(BadRequest, match="STOKER_CACHE"):
        open_cache({"STOKER_CACHE": str(tmp_path / "file" / "cache")})


def test_opening_a_cache_keeps_its_files(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)
    wanted = Wanted("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", 5)
    cache.fetch(wanted, lambda into: into(memoryview(b"hello"))).close()
    again = open_cache({"STOKER_CACHE": str(tmp_path), "STOKER_CACHE_GB": "1"})
    assert again.held(wanted) is not None


@pytest.mark.parametrize(("text", "seconds"), [("", PATIENCE_S), ("0.5", 0.5), ("3600", 3600.0)])
def test_the_patience_with_a_store(text: str, seconds: float) -> None:
    assert store_patience({"STOKER_STORE_PATIENCE_S": text}) == seconds


def test_mistakes_are_answered_golden() -> None:
    lines = []
    for call, name, texts in (
        (lambda v: cache_limit(Path("CACHE"), v), "STOKER_CACHE_GB", ("much", "-1")),
        (store_patience, "STOKER_STORE_PATIENCE_S", ("long", "0", "\x1b[31m", "nan")),
    ):
        for text in texts:
            with pytest.raises(BadRequest) as caught:
                call({name: text})
            lines.append(str(caught.value))
    check_golden("stores_settings", lines)
