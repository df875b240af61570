"""A run.json as `stoker train` writes it, for tests that make a run directory by hand."""

from __future__ import annotations

from typing import Any


def record(**changes: Any) -> dict[str, Any]:
    return {
        "recipe": "quick",
        "values": {"model": "resnet9_w16"},
        "data": "/sets/photos",
        "fingerprint": "f00d",
        "classes": list("abcdef"),
        "lanes": 1,
        "changes": [],
        **changes,
    }
