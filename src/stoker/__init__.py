"""Stoker: from a folder of labelled images to a trained, explained and resumable classifier.

The names below are the Python API. They are loaded on first use, so `import stoker` stays quick
and never imports torch by itself.
"""

from stoker.safe_path import protect_command

protect_command()  # before anything else is imported

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:
    from stoker.data.dataset import Dataset as Dataset
    from stoker.data.loading.loader import BatchLoader as BatchLoader
    from stoker.data.loading.order import Order as Order
    from stoker.data.loading.torch_loader import Loader as Loader
    from stoker.data.packing.pack import pack as pack
    from stoker.measure.meter import Meter as Meter
    from stoker.measure.spans import Spans as Spans
    from stoker.recipe.recipe import Recipe as Recipe
    from stoker.recipe.resolve import resolve as resolve
    from stoker.run.directory import Run as Run

__version__ = "0.1.0"
_HOMES = {
    "Dataset": "stoker.data.dataset",
    "BatchLoader": "stoker.data.loading.loader",
    "Loader": "stoker.data.loading.torch_loader",
    "Meter": "stoker.measure.meter",
    "Order": "stoker.data.loading.order",
    "Recipe": "stoker.recipe.recipe",
    "Run": "stoker.run.directory",
    "Spans": "stoker.measure.spans",
    "pack": "stoker.data.packing.pack",
    "resolve": "stoker.recipe.resolve",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Load a public name from its module; AttributeError for any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
