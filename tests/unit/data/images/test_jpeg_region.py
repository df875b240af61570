"""An extra is used only where it is there and shows what the full decoder shows."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import simplejpeg

from stoker.data.images import jpeg_region as region


def cut(data: bytes, *numbers: Any) -> tuple[int, int]:
    """What the extra does, done with the full decoder: rows begin two pixels left of the region."""
    width, height, left, top, right, bottom, scale, room = numbers
    least = {"min_width": width // scale, "min_height": height // scale}
    rows = simplejpeg.decode_jpeg(data, **least)[top:bottom, left - 2 : right].tobytes()
    room[: len(rows)] = rows
    return right - left + 2, 2


def off_by_one(data: bytes, *numbers: Any) -> tuple[int, int]:
    found = cut(data, *numbers)
    numbers[-1][30] ^= 1
    return found


def refusing(data: bytes, *numbers: Any) -> tuple[int, int]:
    raise ValueError("Bogus input")


def used(monkeypatch: pytest.MonkeyPatch, extra: object) -> tuple[object, str]:
    monkeypatch.setitem(sys.modules, "stoker_region", extra)
    decode_region, _, why_not = region.find()
    return decode_region, why_not


def test_one_that_agrees_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = SimpleNamespace(decode_region=cut, WIDEST=48)
    assert used(monkeypatch, extra) == (cut, "")


@pytest.mark.parametrize("wrong", [off_by_one, refusing])
def test_one_that_does_not_agree_is_left_alone(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    extra = SimpleNamespace(decode_region=wrong, WIDEST=48)
    assert used(monkeypatch, extra) == (None, region.DISAGREES)


def test_without_one_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    decode_region, why_not = used(monkeypatch, None)
    assert decode_region is None
    assert "pip install ./extensions/region" in why_not
