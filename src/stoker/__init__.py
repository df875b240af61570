"""Stoker: from a folder of labelled images to a trained, explained and resumable classifier.

The names below are the Python API. They are loaded on first use, so `import stoker` stays quick
and never imports torch by itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.data.dataset import Dataset
    from stoker.data.loading.loader import Loader
    from stoker.data.loading.order import Order
    from stoker.data.packing.pack import pack
    from stoker.measure.meter import Meter
    from stoker.measure.spans import Spans
    from stoker.recipe.recipe import Recipe
    from stoker.recipe.resolve import resolve
    from stoker.run.directory import Run

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "Loader",
    "Meter",
    "Order",
    "Recipe",
    "Run",
    "Spans",
    "__version__",
    "pack",
    "resolve",
]

_HOMES = {
    "Dataset": "stoker.data.dataset",
    "Loader": "stoker.data.loading.loader",
    "Meter": "stoker.measure.meter",
    "Order": "stoker.data.loading.order",
    "Recipe": "stoker.recipe.recipe",
    "Run": "stoker.run.directory",
    "Spans": "stoker.measure.spans",
    "pack": "stoker.data.packing.pack",
    "resolve": "stoker.recipe.resolve",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module; AttributeError for any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
