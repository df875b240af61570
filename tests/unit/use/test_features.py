"""The vectors before the head: of our models and timm's, and the files with them."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from stoker.errors import BadRequest
from stoker.recipe.resolve import resolve
from stoker.train.model.build import build_model
from stoker.use.features import FEATURE_FILES, FeatureTap, NpyFeatures

MODELS = [
    "resnet18",
    "mobilenetv3_small_050",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "resnetv2_18",
]


def built(name: str, **flags: Any) -> nn.Module:
    return build_model(resolve(None, {"model": name, **flags}).recipe, 3)[0].eval()


@torch.no_grad()
def test_ours_are_those_before_the_head() -> None:
    model, images = built("resnet9_w4"), torch.randn(2, 3, 16, 16)
    tap = FeatureTap(model, 3)
    model(images)
    features = tap.take()
    torch.testing.assert_close(features, model.features(images), rtol=0, atol=0)  # type: ignore[operator]
    tap.close()
    model(images)
    with pytest.raises(BadRequest, match="has nothing"):
        tap.take()


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_those_of_timm_are_its_own(name: str) -> None:
    pytest.importorskip("timm")
    size = 224 if "224" in name else 64
    model, images = built(name, image_size=size), torch.randn(1, 3, size, size)
    tap = FeatureTap(model, 3)
    model(images)
    own: Any = model
    expected = own.forward_head(own.forward_features(images), pre_logits=True)
    torch.testing.assert_close(tap.take(), expected.flatten(1))


@torch.no_grad()
def test_another_model_has_its_last_linear_layer() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    tap, images = FeatureTap(model, 3), torch.randn(4, 3, 2, 2)
    model(images)
    torch.testing.assert_close(tap.take(), model[:3](images))


@torch.no_grad()
def test_models_without_such_vectors_are_refused() -> None:
    with pytest.raises(BadRequest, match="no last linear layer"):
        FeatureTap(nn.Conv2d(3, 3, 1), 3)
    model = nn.Linear(4, 3)
    tap = FeatureTap(model, 3)
    model(torch.zeros(2, 7, 4))
    with pytest.raises(BadRequest, match=r"the shape \(2, 7, 4\)"):
        tap.take()


NAMES = ["a.jpg", "b\n.jpg", os.fsdecode(b"\xff.jpg"), "d.jpg"]
VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)
BROKEN = np.array([False, True, False, False])


@pytest.mark.parametrize("suffix", FEATURE_FILES)
def test_rows_are_those_of_the_output(suffix: str) -> None:
    data = io.BytesIO()
    file = FEATURE_FILES[suffix](data)
    for part in (slice(0, 3), slice(3, 4)):
        file.write(NAMES[part], VECTORS[part], BROKEN[part])
    file.close()
    data.seek(0)
    if suffix == ".npy":
        rows = np.load(data)
        assert np.isnan(rows).all(1).tolist() == BROKEN.tolist()
        np.testing.assert_array_equal(rows[~BROKEN], VECTORS[~BROKEN])
        return
    table = pq.read_table(data)
    assert table.column("path").to_pylist() == ["a.jpg", "b\n.jpg", "\\xff.jpg", "d.jpg"]
    vectors = table.column("features").to_pylist()
    assert vectors == [VECTORS[0].tolist(), None, *VECTORS[2:].tolist()]


def test_the_header_of_a_growing_file_keeps_its_length() -> None:
    data = io.BytesIO()
    file = NpyFeatures(data)
    for _ in range(5000):
        file.write(["x"] * 25, np.ones((25, 1), np.float32), np.zeros(25, np.bool_))
    file.close()
    data.seek(0)
    assert np.load(data).shape == (125_000, 1)
