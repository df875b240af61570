"""When a run ends before its last epoch."""

from __future__ import annotations

import pytest

from golden import check_golden
from stoker.recipe.early_end import early_end
from stoker.recipe.recipe import Recipe


@pytest.mark.parametrize(
    ("patience", "target", "best", "stale", "ends"),
    [
        (0, 0.0, 1.0, 99, False),  # no rule
        (3, 0.0, 0.5, 2, False),
        (3, 0.0, 0.5, 3, True),
        (3, 0.0, -1.0, 3, True),  # never a finite result
        (0, 0.9, 0.8999, 0, False),
        (0, 0.9, 0.9, 0, True),
        (0, 1.0, 1.0, 5, True),
        (3, 0.9, 0.8, 2, False),
        (3, 0.9, 0.95, 0, True),
    ],
)
def test_rules(patience: int, target: float, best: float, stale: int, ends: bool) -> None:
    assert bool(early_end(Recipe(patience=patience, target=target), best, stale)) == ends


def test_reasons_golden() -> None:
    check_golden(
        "recipe_early_end",
        [
            early_end(Recipe(target=0.9), 0.912, 0),
            early_end(Recipe(patience=3), 0.5, 3),
            early_end(Recipe(patience=1), 0.5, 1),
        ],
    )
