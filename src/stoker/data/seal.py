"""The seal of a set's description: a hash of everything else that `dataset.json` says.

Invariant: a description with a seal is the one that was written, or the seal does not hold. The
description holds the hash of every other file, so that the seal stands for the whole set. Sets
without one are older; what belongs to the seal cannot be there without it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

FORMAT = 1
"""Of a packed set. Every description says it."""
SEAL = "digest"
COMES_WITH_IT = "rejected_sha256"
ALIKE = "near_duplicates_sha256"
"""Where near duplicates were asked for: the hash of their table."""
WALK_CACHE, SOURCE_CACHE = ".walk.parquet", ".source.json"
"""What the next start of a pack finds quickly that it would else have to look for again. They lie
in a set's folder, belong to no set and may be deleted."""


def sealed(description: dict[str, Any]) -> dict[str, Any]:
    """A description with its seal, as it will be read again: a number for a key becomes text."""
    plain: dict[str, Any] = json.loads(json.dumps(description))
    return {**plain, SEAL: digest_of(plain)}


def is_sealed(description: dict[str, Any]) -> bool:
    return SEAL in description or COMES_WITH_IT in description


def seal_holds(description: dict[str, Any]) -> bool:
    """Whether a description is as it was sealed, or older than seals."""
    return not is_sealed(description) or description.get(SEAL) == digest_of(description)


def digest_of(description: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of all but the seal: sorted keys, no spaces, ASCII."""
    rest = {key: value for key, value in description.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
