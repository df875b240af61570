"""Fine-tuning against training from scratch: python benchmarks/finetune.py ARCHIVE FOLDER

ARCHIVE is a tar of train/CLASS and val/CLASS images, such as 40 classes of Tiny ImageNet. A model
is trained on all classes but the last ten. Each way then learns these ten from a few images each,
in the same number of steps, from the same seeds. Everything is done by commands that a user would
type; what is finished in FOLDER is not done again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from runs import final_top1, train_all
from stoker.intervals import mean_of

NEW_CLASSES = 10
COMMON = "--image-size 32 --crop-scale 0.35 --batch-size 64 --scheduler cosine"
BODY = "--model resnet9_w16 --epochs 12 --lr-base 0.4 --warmup-epochs 1 --label-smoothing 0.1"
FINETUNE = "--model resnet9_w16 --warmup-epochs 0.5 --label-smoothing 0.1 --weights {body}"
WAYS = {
    "from scratch": "--model resnet9_w16 --lr-base 0.4 --warmup-epochs 0.5 --label-smoothing 0.1",
    "full": f"{FINETUNE} --lr-base 0.1",
    "layer decay 0.7": f"{FINETUNE} --lr-base 0.2 --layer-decay 0.7",
    "frozen body": f"{FINETUNE} --lr-base 0.4 --freeze body",
    "frozen for a third": f"{FINETUNE} --lr-base 0.1 --freeze body --freeze-epochs {{third}}",
}


def stoker(*words: str) -> None:
    """Run a command; its lines go to standard error."""
    done = subprocess.run([sys.executable, "-m", "stoker", *words], stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"stoker {' '.join(words)} ended with {done.returncode}")


def unpack(archive: Path, folder: Path, most: int) -> tuple[Path, Path]:
    """Folders of the images of the first classes, and of the last ten with at most so many images
    of a class to train on."""
    images, done = folder / "images", folder / "unpacked"
    if not done.exists():
        with tarfile.open(archive) as opened:
            opened.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
            opened.extractall(images)
        classes = sorted(path.name for path in (images / "train").iterdir() if path.is_dir())
        for number, name in enumerate(classes):
            part = "new" if number >= len(classes) - NEW_CLASSES else "body"
            for split in ("train", "val"):
                target = folder / part / split / name
                target.mkdir(parents=True)
                limit = most if (part, split) == ("new", "train") else None
                for file in sorted((images / split / name).rglob("*.*"))[:limit]:
                    os.link(file, target / file.name)
        done.touch()
    return folder / "body", folder / "new"


def packed(images: Path) -> str:
    target = images.with_name(f"{images.name}-packed")
    stoker("pack", str(images), str(target), "--codec", "raw")
    return str(target)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replicates", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10, help="of learning the ten classes")
    parser.add_argument("--images", type=int, default=100, help="to learn each of them from")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    body_images, new_images = unpack(options.archive, folder, options.images)
    body, body_set, new_set = folder / "body-run", packed(body_images), packed(new_images)
    flags = f"{COMMON} {BODY}"
    stoker("train", body_set, "--run", str(body), *flags.split())
    print(f"body: {final_top1(body):.2f} % top-1 on its own classes, `{flags}`")
    common = f"{new_set} {COMMON} --epochs {options.epochs} --eval-every {options.epochs}"
    words: dict[Path, str] = {}
    runs: dict[str, list[Path]] = {}
    for way, text in WAYS.items():
        flags = text.format(body=body, third=round(options.epochs / 3, 1))
        runs[way] = [
            folder / f"{way.replace(' ', '-')}-{seed}" for seed in range(options.replicates)
        ]
        words |= {run: f"{common} {flags} --seed {seed}" for seed, run in enumerate(runs[way])}
    top1 = train_all(words)
    print("\n| way | top-1, mean | 95 % interval | each | flags |\n|---|---|---|---|---|")
    for way, text in WAYS.items():
        results = [top1[run] for run in runs[way]]
        mean = mean_of(results)
        each = ", ".join(f"{result:.1f}" for result in results)
        interval = f"{mean.low:.1f} to {mean.high:.1f}"
        print(f"| {way} | {mean.mean:.1f} % | {interval} | {each} | `{text}` |", flush=True)


if __name__ == "__main__":
    main()
