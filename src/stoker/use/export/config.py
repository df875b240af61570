"""The config.json of an export: timm's layout, and an object `stoker` with what Stoker needs.

Invariants: `timm.create_model("local-dir:OUT", pretrained=True)` builds the exported model from it,
where the model is one of timm's. Nothing in it names this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import stoker
from stoker.use.classifier import Classifier
from stoker.use.exported.files import FORMAT

KEPT = ("fixed_input_size", "pool_size", "first_conv", "classifier")
"""What timm's own configuration says of a model, which training does not change."""


def timm_config(classifier: Classifier) -> dict[str, Any]:
    """The part of config.json that timm reads."""
    model, preprocessing = classifier.model, classifier.preprocessing
    own = getattr(model, "pretrained_cfg", None) or {}
    size, count = preprocessing.image_size, len(classifier.classes)
    architecture = own.get("architecture") or classifier.recipe.model
    pool = getattr(model, "global_pool", None)
    features = getattr(model, "num_features", None)
    return {
        "architecture": architecture,
        "num_classes": count,
        **({"num_features": features} if isinstance(features, int) else {}),
        **({"global_pool": pool} if isinstance(pool, str) else {}),
        "label_names": classifier.classes,
        "pretrained_cfg": {
            "tag": "stoker",
            "custom_load": False,
            "input_size": [3, size, size],
            **{name: own[name] for name in KEPT if name in own},
            "interpolation": "bilinear",
            "crop_pct": preprocessing.crop_pct,
            "crop_mode": "center",
            "mean": list(preprocessing.normalise.mean),
            "std": list(preprocessing.normalise.std),
            "num_classes": count,
        },
    }


def stoker_facts(classifier: Classifier, more: Mapping[str, Any]) -> dict[str, Any]:
    """What Stoker reads from an export; `more` is added at the end."""
    manifest, recipe = classifier.facts, classifier.recipe
    preprocessing = classifier.preprocessing
    return {
        "format": FORMAT,
        "version": stoker.__version__,
        "model": recipe.model,
        "amp": recipe.amp,
        "channels_last": recipe.channels_last,
        **({"model_code": recipe.model_code} if recipe.model_code else {}),
        "input": {
            "image_size": preprocessing.image_size,
            "crop_pct": preprocessing.crop_pct,
            "filter": str(manifest["input"].get("filter", "")),
            **asdict(preprocessing.normalise),
        },
        "storage": asdict(preprocessing.storage),
        "recipe_digest": str(manifest.get("recipe_digest", "")),
        "fingerprint": str(manifest.get("fingerprint", "")),
        "step": manifest["step"],
        "position": manifest["position"],
        "classes": classifier.classes,
        **more,
    }
