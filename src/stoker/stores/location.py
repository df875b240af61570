"""Where a set or a run is: a folder, or a place in an object store or on a web server.

    s3://BUCKET/PREFIX    gs://BUCKET/PREFIX    az://CONTAINER/PREFIX    http(s)://HOST/PREFIX

Invariants: a location holds no credentials: one that does is refused in any word of a command, and
what it holds is not repeated in the message. A key below a location never leads out of it. A
`Path` of a location, which has lost one slash, is the same location.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stoker.commit import sha256_of
from stoker.errors import BadRequest
from stoker.text import shown

SCHEMES = {"s3": "bucket", "gs": "bucket", "az": "container", "http": "host", "https": "host"}
"""What can be read, and what comes behind the slashes."""
OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az"}
_STORES = tuple(f"{name}:/" for name in {*SCHEMES, *OTHER_NAMES} - {"http", "https"})
_LOCATION = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?!/)(.*)", re.DOTALL)
_LONGEST = 1024
"""Characters: the longest key of S3, GCS and Azure."""


@dataclass(frozen=True)
class Location:
    """A place in an object store or on a web server."""

    scheme: str
    root: str
    """The bucket, the container, or the host with its port."""
    prefix: str = ""
    """The path below the root, without a slash at its ends."""

    def __str__(self) -> str:
        return "/".join(part for part in (f"{self.scheme}://{self.root}", self.prefix) if part)

    def __truediv__(self, name: str) -> Location:
        return Location(self.scheme, self.root, f"{self.prefix}/{name}".strip("/"))

    @property
    def is_web(self) -> bool:
        """Whether it is on a web server, which can only be read."""
        return self.scheme in ("http", "https")

    @property
    def digest(self) -> str:
        """Identifies it in the name of a folder."""
        return sha256_of(str(self).encode())[:20]

    @property
    def name(self) -> str:
        """The last part, as the name of a folder."""
        return (self.prefix or self.root).rsplit("/", 1)[-1]


def location_of(place: str | os.PathLike[str]) -> Location | None:
    """The location that a text names; None for the path of a file or folder. Raises BadRequest for
    a location that cannot be used."""
    text = os.fspath(place)
    match = _LOCATION.fullmatch(text)
    if match is None:
        return None
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        raise BadRequest(f"{shown(text)}: name the folder by its path, without file://")
    if scheme in OTHER_NAMES:
        raise BadRequest(f"{scheme}:// is written {OTHER_NAMES[scheme]}:// here")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise BadRequest(f"{scheme}:// cannot be read: use {known} or a path")
    refuse_credentials(text)
    root, _, prefix = rest.partition("/")
    if not root:
        raise BadRequest(f"{shown(text)} names no {SCHEMES[scheme]}")
    if not rest.isprintable() or len(rest) > _LONGEST or {".", ".."} & set(prefix.split("/")):
        raise BadRequest(f"{shown(text)} is not a location")
    return Location(scheme, root, re.sub("/+", "/", prefix).strip("/"))


def refuse_credentials(text: str) -> None:
    """Raise BadRequest for a location of any scheme that holds credentials or a signature."""
    match = _LOCATION.fullmatch(text)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", "")
    root = rest.partition("/")[0]
    if "@" in root or (":" in root and "@" in rest and not scheme.startswith("http")):
        raise BadRequest(
            f"a {scheme}:// location must not hold credentials: set them in the environment"
        )
    if match and ("?" in rest or "#" in rest):
        raise BadRequest(
            f"a {scheme}:// location must not hold ? or #: signed addresses cannot be used, set "
            "credentials in the environment"
        )


def refuse_credentials_in(words: Iterable[str]) -> None:
    """Raise BadRequest where a word of a command, or the value of its flag, is a location in a
    store that holds credentials: no verb writes or prints them."""
    for word in words:
        value = word.partition("=")[2] if word.startswith("--") else word
        if value.lower().startswith(_STORES):
            refuse_credentials(value)


def is_location(place: str | os.PathLike[str]) -> bool:
    """Whether a text names a location rather than a path. Raises BadRequest as `location_of`."""
    return location_of(place) is not None


def key_of(name: str) -> str:
    """A key that is relative to a location, checked. Raises ValueError for one that leads out."""
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name!r} is not a key")
    return name
