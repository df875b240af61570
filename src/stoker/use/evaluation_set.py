"""The packed set of a folder or an archive that a model is evaluated on.

Invariants: images are stored as those of the training set were, so that figures agree. Nothing is
held out, and one class is enough: evaluation is not training. The set of the training itself is
never packed again, because only part of it was held out. A set that was packed is used again; one
whose source has changed is refused, not replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stoker.commit import sha256_json
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import Progress, default_out, hex_path, pack
from stoker.data.seal import SOURCE_CACHE
from stoker.errors import BadRequest
from stoker.text import shown


@dataclass(frozen=True)
class EvaluationSet:
    """Where the images of a source are packed, and whether that was just done."""

    path: Path
    is_new: bool


def evaluation_out(source: str, storage: Storage) -> Path:
    """The folder, in the working directory, for the images of a source stored like this."""
    name = default_out(source).name.removesuffix("-packed")
    suffix = "" if storage == Storage() else f"-{sha256_json(asdict(storage))[:6]}"
    return Path(f"{name}-evaluation{suffix}")


def evaluation_set(
    source: str,
    storage: Storage,
    trained_on: object,
    tell: Callable[[str], None],
    progress: Progress | None = None,
) -> EvaluationSet:
    """The packed set of a source: the training set where it was made from it, else one for
    evaluation. `trained_on` is the fingerprint of the training set. Raises BadRequest where the
    source is refused or has changed, StokerError where the disk fails."""
    trained = default_out(source)
    if (
        Dataset.is_packed(trained)
        and Dataset(trained).fingerprint == trained_on
        and is_source(trained, source)
    ):
        tell(f"{shown(source)} was packed into {trained} for training: evaluating on that set")
        return EvaluationSet(trained, False)
    storage = replace(storage, near_duplicates=False)
    target = evaluation_out(source, storage)
    is_new = not Dataset.is_packed(target)
    tell(f"packing {shown(source)} into {target}" if is_new else f"{target} is packed already")
    try:
        pack(source, target, storage=storage, progress=progress, val_share=0, allow_one_class=True)
    except BadRequest as error:
        if is_new:
            raise
        raise BadRequest(
            f"{target} holds other images than {shown(source)} has now: remove {target}, then give "
            "the same command again"
        ) from error
    return EvaluationSet(target, is_new)


def is_source(packed: Path, source: str) -> bool:
    """Whether a set was packed from this folder or archive: another one may have the same name."""
    try:
        cache = json.loads((packed / SOURCE_CACHE).read_text(encoding="utf-8"))
        stamp = cache.get("stamp") or [None]
        return hex_path(source) in (cache.get("root"), stamp[0])
    except (OSError, ValueError, AttributeError, TypeError, KeyError, IndexError):
        return False
