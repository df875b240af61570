"""Copies of runs in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.stores.location import Location
from stoker.survive.remote import open as opening
from stoker.survive.remote.records import Content


def test_a_checkpoint_that_the_run_removes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    one, two = "000000001", "000000002"
    said = [Content(files={"run.json": {}}, checkpoints={one: "a", two: "b"})]
    said += [Content(files={"run.json": {}}, checkpoints={two: "b"})]
    monkeypatch.setattr(opening, "StoreClient", lambda location: location)
    monkeypatch.setattr(opening, "content_of", lambda objects: said.pop(0))
    monkeypatch.setattr(opening, "copied", lambda *words, **more: {one, two})
    stored = opening.whole_copy(Location("s3", "bucket", "run"))
    assert stored
    assert stored.damaged == ["s3://bucket/run/b"]
