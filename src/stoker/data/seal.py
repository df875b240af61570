"""The seal of a description: a hash over everything else in `dataset.json`.

Invariants: a description that was changed after packing does not match its seal. The description
holds the hash of every other file, so the seal covers the whole set. A set that was packed before
seals existed has neither the seal nor the hash of its rejected files; a description with one of
the two is checked.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

FORMAT = 2
"""Of a set with a large split; older versions of Stoker say that they cannot read it."""
WHOLE_FORMAT = 1
"""Of all other sets."""
SEAL = "digest"
REJECTED_SHA256 = "rejected_sha256"
NEAR_SHA256 = "near_duplicates_sha256"
"""Only in a set that was packed with --near-duplicates."""
CACHES = WALK_CACHE, SOURCE_CACHE = ".walk.parquet", ".source.json"
"""They make the next `stoker pack` start faster, are not part of the set and may be deleted."""


def sealed(description: dict[str, Any]) -> dict[str, Any]:
    """A description with its seal, as JSON will return it: a key that is a number becomes text."""
    plain: dict[str, Any] = json.loads(json.dumps(description))
    return {**plain, SEAL: digest_of(plain)}


def is_sealed(description: dict[str, Any]) -> bool:
    """Whether a description has a seal, or has lost it."""
    return SEAL in description or REJECTED_SHA256 in description


def seal_holds(description: dict[str, Any]) -> bool:
    """Whether a description matches its seal, or was written before seals existed."""
    return not is_sealed(description) or description.get(SEAL) == digest_of(description)


def digest_of(description: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of all but the seal: sorted keys, no spaces, ASCII."""
    rest = {key: value for key, value in description.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
