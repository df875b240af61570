"""When a run ends before its last epoch: a pure function of the recipe and of its evaluations.

Invariant: the rules say when to stop, never what is trained until then. So a run that ended early
goes on, with a rule raised or dropped, to the bits that it would have had without the rule.
"""

from __future__ import annotations

from stoker.recipe.recipe import Recipe
from stoker.text import plural


def early_end(recipe: Recipe, best: float, stale: int) -> str:
    """Why a run ends after an evaluation; empty where it goes on. `best` is the best top-1 share so
    far, `stale` the number of evaluations since it was reached."""
    if recipe.target and best >= recipe.target:
        return f"top-1 {best:.2%} reaches --target {recipe.target:g}"
    if recipe.patience and stale >= recipe.patience:
        return f"no better result in {plural(stale, 'evaluation')}, --patience {recipe.patience}"
    return ""
