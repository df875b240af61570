"""What a reader has when a page of the documentation begins: photographs, a packed set, runs.

Each is made once in a process and then copied, so that pages cannot disturb each other.
"""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from PIL import Image

from samples import image_folder, picture

SMALL = ("--model", "resnet9_w4", "--image-size", "32", "--batch-size", "32")


def stoker(folder: Path, *words: str) -> None:
    """Run a command that must succeed."""
    command = [sys.executable, "-m", "stoker", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"stoker {' '.join(words)}:\n{done.stdout}{done.stderr}"


def photos(folder: Path) -> None:
    """120 photographs of three classes in `photos`, and `new.jpg`, of the second class."""
    image_folder(folder / "photos", classes=3, images=40, size=(96, 80))
    picture(1, 1000, (96, 80)).save(folder / "new.jpg")


def packed(folder: Path) -> None:
    """`photos-packed`, with a tenth of each class held out."""
    bring(["photos"], folder)
    stoker(folder, "pack", "photos")
    # It names the folder of the photographs, which is another one in a copy.
    (folder / "photos-packed" / ".source.json").unlink()


def mine(folder: Path) -> None:
    """`runs/mine`: a run that has finished, and the set it was trained on."""
    bring(["photos-packed"], folder)
    stoker(folder, "train", "photos-packed", "--run", "runs/mine", "--epochs", "2", *SMALL)


def other(folder: Path) -> None:
    """`runs/other`: the same with another learning rate."""
    bring(["photos-packed"], folder)
    words = ("--run", "runs/other", "--epochs", "2", "--lr", "0.02", *SMALL)
    stoker(folder, "train", "photos-packed", *words)


def sweep(folder: Path) -> None:
    """`sweeps/lr`: a sweep over two learning rates, and the set it was trained on."""
    bring(["photos-packed"], folder)
    words = ("--out", "sweeps/lr", "--set", "lr=0.05,0.2", "--epochs", "1", "--workers", "2")
    stoker(folder, "sweep", "photos-packed", *words, *SMALL)


def imagenet(folder: Path) -> None:
    """`imagenet` in the layout of ImageNet: train and val, folders named by WordNet numbers."""
    image_folder(folder / "imagenet", classes=4, images=40, val=10, size=(120, 96))
    for split in ("train", "val"):
        for number in range(4):
            place = folder / "imagenet" / split
            (place / f"class{number}").rename(place / f"n0144{number:04d}")


def flower_program() -> str:
    """The program of docs/first-run.md that draws flowers."""
    text = (Path(__file__).parents[1] / "docs" / "first-run.md").read_text(encoding="utf-8")
    return text.partition('title="make_photos.py"\n')[2].partition("```")[0]


def flowers(folder: Path) -> None:
    """150 pictures in `photos`, of daisies, roses and tulips, and `new.jpg`, a rose."""
    subprocess.run([sys.executable, "-c", flower_program()], cwd=folder, check=True, timeout=60)


def garden(folder: Path) -> None:
    """`runs/garden`: a run on five other kinds of flowers, without its images."""
    kinds = {"aster": (16, "violet"), "buttercup": (5, "yellow"), "clematis": (4, "purple")}
    kinds |= {"cosmos": (8, "pink"), "poppy": (4, "red")}
    program = re.sub("^KINDS = .*$", f"KINDS = {kinds}", flower_program(), flags=re.MULTILINE)
    program = program.replace('"rose"', '"poppy"')
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=60)
    words = ("--run", "runs/garden", "--epochs", "3", "--image-size", "32")
    stoker(folder, "train", "photos", *words)
    (folder / "new.jpg").unlink()
    shutil.rmtree(folder / "photos")
    shutil.rmtree(folder / "photos-packed")


def tiny_model(folder: Path) -> None:
    """`tiny.py`, whose `build` makes a model that computes next to nothing: for large batches."""
    layers = "nn.Conv2d(3, 8, 8, stride=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, n)"
    text = f"from torch import nn\n\n\ndef build(n):\n    return nn.Sequential({layers})\n"
    (folder / "tiny.py").write_text(text)


def examples(folder: Path) -> None:
    """The folder `examples` of the repository."""
    shutil.copytree(Path(__file__).parents[1] / "examples", folder / "examples")


def checkpoints(folder: Path) -> None:
    """Checkpoints of a resnet18 for three classes, as other tools save them: `model_best.pth.tar`
    of timm, `checkpoint.pth` of torchvision."""
    program = """if True:
        import argparse, timm, torch, torchvision
        from timm.utils import CheckpointSaver
        model, args = timm.create_model("resnet18", num_classes=3), argparse.Namespace(model="x")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        CheckpointSaver(model, optimizer, args, recovery_dir="").save_checkpoint(0, 0.5)
        model = torchvision.models.resnet18(num_classes=3)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": 0, "args": args}, "checkpoint.pth")"""
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=100)


def as_found(folder: Path) -> None:
    """Flowers as people have them: some files broken, twice there or in the wrong folder."""
    bring(["flowers"], folder)
    place = folder / "photos"
    (place / "lily").mkdir()
    for number in range(4):
        red, green, blue = Image.open(place / "rose" / f"{number:03d}.jpg").split()
        Image.merge("RGB", (blue, green, red)).save(place / "lily" / f"{number:03d}.jpg")
    for number in range(1, 4):
        daisy = Image.open(place / "daisy" / f"0{number}0.jpg").rotate(180)
        daisy.save(place / "tulip" / f"90{number}.jpg")
    shutil.copy(place / "daisy" / "001.jpg", place / "daisy" / "copy.jpg")
    shutil.copy(place / "rose" / "007.jpg", place / "tulip" / "also.jpg")
    (place / "rose" / "cut.jpg").write_bytes((place / "rose" / "002.jpg").read_bytes()[:1000])
    (place / "tulip" / "empty.jpg").touch()
    (place / "notes.txt").write_text("where these are from\n")


MATERIALS: dict[str, Callable[[Path], None]] = {
    "photos": photos,
    "flowers": flowers,
    "flowers as found": as_found,
    "runs/garden": garden,
    "photos-packed": packed,
    "runs/mine": mine,
    "runs/other": other,
    "sweeps/lr": sweep,
    "imagenet": imagenet,
    "tiny.py": tiny_model,
    "examples": examples,
    "checkpoints of other tools": checkpoints,
}


@cache
def made(name: str) -> Path:
    """A folder with one of the materials, and what it was made of."""
    assert name in MATERIALS, f"'{name}' is not among {', '.join(MATERIALS)}"
    folder = Path(tempfile.mkdtemp(prefix="material-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    MATERIALS[name](folder)
    return folder


def bring(names: Sequence[str], folder: Path) -> None:
    """Copy materials into a folder."""
    for name in names:
        shutil.copytree(made(name), folder, dirs_exist_ok=True, symlinks=True)
