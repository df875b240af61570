"""Locations: what a text names, and what is refused without repeating a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden import check_golden
from stoker.errors import BadRequest
from stoker.stores.location import Location, is_location, key_of, location_of

SECRET = "hunter2"
REFUSED = [
    f"s3://key:{SECRET}@bucket/set",
    f"s3:/key:{SECRET}@bucket/set",
    f"s3://key:{SECRET}/more@bucket/set",
    f"https://user:{SECRET}@host/set",
    f"https://host/set?X-Amz-Signature={SECRET}",
    f"https://host/set#{SECRET}",
    "s3a://bucket/set",
    "gcs://bucket/set",
    "ftp://host/set",
    "file://home/set",
    "s3://",
    "s3://bucket/../other",
    "s3://bucket/a/./b",
    "s3://bucket/a\nb",
    "s3://bucket/\x1b[31mred",
    "s3://bucket/" + "x" * 2000,
]


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://bucket/sets/one", Location("s3", "bucket", "sets/one")),
        ("S3://bucket/sets//one/", Location("s3", "bucket", "sets/one")),
        ("gs://bucket", Location("gs", "bucket")),
        ("az://container/a", Location("az", "container", "a")),
        ("http://127.0.0.1:80/a/b", Location("http", "127.0.0.1:80", "a/b")),
        ("https://host/a", Location("https", "host", "a")),
        ("http://host:80/a@2x", Location("http", "host:80", "a@2x")),
        ("s3://bucket/a@2x:1", Location("s3", "bucket", "a@2x:1")),
    ],
)
def test_a_location_is_understood(text: str, location: Location) -> None:
    assert location_of(text) == location
    assert location_of(Path(text)) == location_of(text)
    assert location_of(str(location)) == location
    assert is_location(text)


@pytest.mark.parametrize("text", ["photos", "/data/set", "./s3", "a:b", "C:/set", "s3:bucket", ""])
def test_a_path_is_no_location(text: str) -> None:
    assert location_of(text) is None


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_used_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        location_of(text)
    assert SECRET not in str(caught.value)
    assert str(caught.value).isprintable()


def test_refusals_golden() -> None:
    lines = []
    for text in REFUSED:
        with pytest.raises(BadRequest) as caught:
            location_of(text)
        lines.append(str(caught.value)[:200])
    check_golden("stores_location", lines)


def test_parts_of_a_location() -> None:
    location = Location("s3", "bucket", "sets")
    assert str(location / "one") == "s3://bucket/sets/one"
    assert (location / "one").name == "one"
    assert Location("s3", "bucket").name == "bucket"
    assert not location.is_web
    assert Location("https", "host").is_web


@pytest.mark.parametrize("key", ["a", "train/train-000.tar", "a b", "ä"])
def test_a_key_stays_as_it_is(key: str) -> None:
    assert key_of(key) == key


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\nb", "a\x00"])
def test_a_key_that_leads_out_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        key_of(key)
