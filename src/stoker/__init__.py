"""Stoker: from a folder of labelled images to a trained, explained and resumable classifier.

The names below are the Python API. They are loaded on first use, so `import stoker` stays quick
and never imports torch by itself.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "Dataset": "stoker.data.index",
    "Loader": "stoker.data.loader",
    "Meter": "stoker.measure.meter",
    "Order": "stoker.data.order",
    "Recipe": "stoker.recipe.recipe",
    "Run": "stoker.run",
    "Spans": "stoker.measure.spans",
    "pack": "stoker.data.pack",
    "resolve": "stoker.recipe.origins",
}
__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
