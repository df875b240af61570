"""Damaged archives and tables: each is packed or refused in one line, nothing else is touched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from archive_mutations import mutated_archive
from bounded import contents
from every_crop import seen
from shares import share
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.packing.pack import pack
from stoker.errors import StokerError

WHOLE, PARTS = 10_000, 15


def outcome(seed: int, root: Path) -> str:
    """What becomes of one archive; all that must hold for any is checked here."""
    suffix, _, data = mutated_archive(seed)
    source, out = root / f"{seed}.{suffix}", root / "out"
    source.write_bytes(data)
    before = contents(root, but=out)
    try:
        pack(source, out, val_share=0, workers=1)
    except StokerError as error:
        assert str(error).isprintable(), f"{seed}: {error}"
        assert len(str(error)) < 500, f"{seed}: {error}"
        assert not Dataset.is_packed(out), f"{seed}: {error}"
        return "refused"
    finally:
        assert contents(root, but=out) == before, seed
    assert seen(out, (16,), [View()])
    return "packed"


def test_every_damaged_archive_has_an_outcome(tmp_path: Path, whole: bool, tables: Any) -> None:
    counts: Counter[str] = Counter()
    for seed in share("archive mutations", range(WHOLE), PARTS, whole=whole):
        root = tmp_path / str(seed)
        root.mkdir()
        counts[outcome(seed, root)] += 1
    tables.count("archives with seeded damage", counts)
    assert counts["packed"]
    assert counts["refused"]
