"""Remove what a JPEG decoder does not read: comments, EXIF, profiles, bytes behind the end.

Invariant: the pixels are the same. The segments that decoding needs are copied as they are: the
first JFIF (APP0) and Adobe (APP14) segments stay, because they say how colours are coded.
"""

from __future__ import annotations

import re

EOI, SOS, COM = 0xD9, 0xDA, 0xFE
JFIF, ADOBE = 0xE0, 0xEE
METADATA = {COM, *range(0xE0, 0xF0)}
_NEXT = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""A marker behind the bits of a scan: neither a stuffed byte nor a restart nor padding."""


def without_metadata(jpeg: bytes) -> bytes | None:
    """A JPEG without metadata; None where its segments cannot be followed to its end."""
    parts, at, kept_once = [jpeg[:2]], 2, {JFIF, ADOBE}
    while match := _NEXT.search(jpeg, at):
        # Bits of a scan; nothing but padding lies between other segments.
        if parts[-1][:2] == bytes([0xFF, SOS]):
            parts.append(jpeg[at : match.start()])
        marker, body = jpeg[match.start() + 1], match.end()
        if marker == EOI:
            return b"".join([*parts, jpeg[match.start() : body]])
        at = body + int.from_bytes(jpeg[body : body + 2])
        if marker not in METADATA or marker in kept_once:
            parts.append(jpeg[match.start() : at])
            kept_once.discard(marker)
    return None
