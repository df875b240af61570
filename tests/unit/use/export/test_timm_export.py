"""Models of timm: the export is one of timm's own folders, and gives the same answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from exports import answers_without_stoker, code_blocks, config_of, tiny_run
from samples import picture
from stoker.use.classifier import open_classifier
from stoker.use.export.write import ExportOptions, export_run
from tiny_runs import one_thread_alone

__all__ = ["one_thread_alone"]
timm = pytest.importorskip("timm")
CPU = torch.device("cpu")
SIDE = 32


def exported(root: Path, model: str, *formats: str) -> Path:
    flags = {"model": model, "image_size": SIDE, "epochs": 1, "lr": 0.02}
    export_run(tiny_run(root, **flags), root / "out", ExportOptions(formats))
    return root / "out"


def images(count: int) -> torch.Tensor:
    made = [np.asarray(picture(n % 3, 900 + n, (SIDE, SIDE))) for n in range(count)]
    return torch.from_numpy(np.stack(made))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("resnet"), "resnet10t", "safetensors")


def test_timm_loads_it(resnet: Path) -> None:
    model = timm.create_model(f"local-dir:{resnet}", pretrained=True).eval()
    own = open_classifier(resnet.parent / "run", CPU)
    with torch.no_grad():
        logits = model(own.to_input(images(3), None))
    torch.testing.assert_close(logits, own.logits(images(3)), atol=1e-5, rtol=1e-5)
    config = timm.data.resolve_model_data_config(model)
    assert list(config["input_size"]) == [3, SIDE, SIDE]
    assert (config["interpolation"], config["crop_pct"]) == ("bilinear", 1.0)
    assert list(model.pretrained_cfg["label_names"]) == own.classes
    assert config_of(resnet)["pretrained_cfg"]["classifier"] == "fc"


@pytest.mark.exact
def test_stoker_loads_it(resnet: Path) -> None:
    own = open_classifier(resnet.parent / "run", CPU).logits(images(3))
    assert torch.equal(open_classifier(resnet, CPU).logits(images(3)), own)


def test_the_cards_code_runs_without_stoker(resnet: Path) -> None:
    (block,) = code_blocks((resnet / "README.md").read_text())
    Image.fromarray(images(1)[0].numpy()).save(resnet / "photo.jpg", format="png")
    own = open_classifier(resnet, CPU)
    wanted = own.classes[int(own.logits(images(1)).argmax())]
    assert answers_without_stoker(resnet, [block]) == [wanted]


@pytest.mark.rotates(6)
@pytest.mark.parametrize("model", ["resnet18", "mobilenetv3_small_050", "efficientnet_b0"])
def test_every_format_of_a_model(model: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    out = exported(tmp_path, model, "safetensors", "torch", "onnx")
    differences = config_of(out)["stoker"]["differences"]
    assert {one["other_classes"] for one in differences.values()} == {0}
    (out / "model.safetensors").unlink()
    program = torch.export.load(out / "model.pt2").module()
    own = open_classifier(tmp_path / "run", CPU)
    for count in (1, 3):
        logits, _ = program(images(count))
        torch.testing.assert_close(logits, own.logits(images(count)), atol=1e-4, rtol=1e-4)
