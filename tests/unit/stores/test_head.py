from __future__ import annotations

import json
from typing import Any

import pytest

from memory_objects import MemoryObjects
from stoker.errors import NewerFormat
from stoker.stores.head import FORMAT, KEY, MOST_BYTES, Head, WrongHead, parse_head, read_head
from stoker.stores.objects import StoreError

HEAD = Head("0123456789abcdef", "node7", 3, 60.0, False, {"newest": "000000012"})
DOCUMENT = {"format": FORMAT, **vars(HEAD)}
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "half": HEAD.encoded()[:-20],
    "not text": b"\xff\xfe\x00\x01",
    "a list": b"[]",
    "a page": b"<html>sign in</html>",
    "nested": b"[" * 100_000,
    "too large": b" " * (MOST_BYTES + 1),
    "not a number": HEAD.encoded().replace(b"60.0", b"NaN"),
    "too large a number": HEAD.encoded().replace(b'"000000012"', b"1e999"),
}
WRONG: dict[str, Any] = {
    "format": [None, 0, "1", True],
    "holder": [None, 5, "", "0123456789ABCDEF", "0123456789abcdef0", "../../etc/passwd"],
    "host": [None, 7, "x" * 201],
    "beat": [None, -1, 1.5, True, 1 << 60],
    "ttl_s": [None, "60", 0, -60.0, 1e9, True],
    "released": [None, 0, "false"],
    "content": [None, [], "text"],
}
"""For each field, what no version writes."""


def test_what_is_written_is_read() -> None:
    objects = MemoryObjects()
    assert read_head(objects) is None
    objects.write(KEY, HEAD.encoded())
    assert read_head(objects) == HEAD


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_head_is_an_error_that_names_the_object(name: str) -> None:
    with pytest.raises(WrongHead) as caught:
        parse_head(DAMAGED[name], "s3://bucket/run")
    assert "s3://bucket/run/head.json" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_a_field_of_another_type_or_range_is_an_error(field: str, value: object) -> None:
    with pytest.raises(WrongHead, match=field):
        parse_head(json.dumps({**DOCUMENT, field: value}).encode(), "s3://bucket/run")


def test_a_field_from_outside_does_not_reach_the_terminal_as_it_is() -> None:
    data = json.dumps({**DOCUMENT, "holder": "\x1b[2J\u202e"}).encode()
    with pytest.raises(WrongHead) as caught:
        parse_head(data, "s3://bucket/run")
    assert str(caught.value).isprintable()


def test_a_newer_format_is_not_damage() -> None:
    with pytest.raises(NewerFormat):
        parse_head(json.dumps({"format": FORMAT + 1, "other": 1}).encode(), "s3://bucket/run")


def test_content_that_is_too_large_is_not_written() -> None:
    with pytest.raises(StoreError, match=r"head\.json"):
        Head("0" * 16, "node7", 0, 60.0, False, {"names": "x" * MOST_BYTES}).encoded()
