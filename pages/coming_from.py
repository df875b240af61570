"""The text of docs/coming-from.md, from the table of other tools' settings; see make.py."""
# ruff: noqa: E501 (the text of the page has longer lines than code)

from __future__ import annotations

import re

from stoker.recipe.other_tools import ForeignSetting, OtherTool, other_tools
from stoker.recipe.recipe import SPECS

CODE = re.compile(r"stoker [a-z-]+(?: --[a-z-]+)?|--[a-z][a-z-]*(?: [\d./][\w.,:/]*| bf16| fp16)?")
"""Commands and flags in a note."""

START = """# Coming from other tools

<!-- begins with: photos, checkpoints of other tools -->
<!-- train adds: --epochs 1 --image-size 32 --batch-size 32 --no-rehearse --no-report -->

You know timm, torchvision's scripts, Ultralytics, Lightning, Composer or fastai. What is the same here, what is
different, and which flag is which?

Type the flag that you know. Stoker answers with its own name, and with the difference:

```sh
stoker train photos -b 64   # ends with 2
```

```text
stoker: '-b' comes from timm and torchvision: Stoker calls it '--batch-size' (there the images of one GPU, here of all ranks together)
```

Others are answered like this:

```text
$ stoker train photos --opt sgd
stoker: '--opt' comes from timm and torchvision: Stoker calls it '--optimizer'
$ stoker train photos --resume last.pth.tar
stoker: '--resume' comes from timm, torchvision and Ultralytics: not needed here: the same command resumes
$ stoker train photos --kd-model-name vit_base_patch16_224
stoker: '--kd-model-name' comes from timm: not offered: there is no distillation
```

Keys in a recipe file are answered in the same way. Where names and defaults were read is stated in each section;
other versions may differ.

## What differs from all of them

| | most other tools | Stoker |
|---|---|---|
| **resuming** | a flag with the path of a checkpoint, and an epoch that begins again | the same command: the same images, order and crops from the next sample on ([surviving](surviving.md)) |
| **batch size** | of one GPU; with more GPUs the batch grows | of all ranks together; `--ranks` does not change it |
| **learning rate** | you scale it | `--lr-base` is scaled with the batch size, `--lr` is taken as it is |
| **data** | decoded from files in each epoch | packed once, with a report of bad files ([packing](packing.md)) |
| **decoding** | worker processes and shared memory | threads; no images pass through `/dev/shm` |
| **seed** | another number of workers or GPUs gives other crops | the same images, order and crops for any number |
| **first model** | 224 px, a large model | without flags: `resnet9_w16` at 64 px, for a result in minutes. Give `--model` and `--image-size` |
| **logging** | callbacks and flags | files of the run; [`watch`, `report`, `explain`, `track`](looking.md) read them |
| **your own code** | callbacks, hooks, an edited script | a model in a file ([models](models.md)); else your own loop with [Stoker's loader](loader.md) |

Two things hold for all of them: they have trained on GPUs for years, and Stoker never has
([what was run on what](hardware.md)). And they do things that Stoker does not do: [limits](limits.md).
"""

INTRODUCTIONS = {
    "timm": """
**The same:** models, optimisers and pretrained weights are timm's own. `--lr-base`, `--layer-decay`, `--drop-path`
and `--clip-grad` mean the same.

**Different:** without flags, timm augments and smooths more. This file has the defaults of `train.py`:

```toml title="timm-defaults.toml"
model = "resnet50"
epochs = 300
batch_size = 128
lr_base = 0.1
warmup_epochs = 5
weight_decay = 2e-5
label_smoothing = 0.1
image_size = 224
crop_scale = 0.08
color_jitter = 0.4
ema_decay = 0.9998
```

```sh title="Not run by the tests: 300 epochs of a ResNet-50 need a GPU"
stoker train photos --recipe timm-defaults.toml
```

**Go on from a checkpoint of timm.** The file is taken as timm saved it. Nothing pickled in it is run:

```sh
stoker train photos --model resnet18 --weights model_best.pth.tar
```

```text
weights: 122 of 122 tensors from model_best.pth.tar; the head is taken as it is: its class names are not known
```

**Go back to timm:** `stoker export RUN OUT` writes a folder that
`timm.create_model("local-dir:OUT", pretrained=True)` loads.

**Stay with timm and ask one question:** `stoker explain train.log` reads the log of `train.py` and says whether data
or compute limits it ([logs](verdict.md#training-logs-of-other-programs)).

**timm does better:** distillation, BCE and JSD losses, AugMix, repeated augmentation, gradient checkpointing, NaFlex
and images that are not square, more schedules, more data readers.
""",
    "torchvision": """
**The same:** folders `train` and `val`, RandAugment and TrivialAugment with the same strengths, deterministic kernels.

**Different:** biases and norm layers have weight decay there by default, and never here. SGD has Nesterov momentum
here. The script has no seed; here every run has one. This file has the defaults of the script for one GPU:

```toml title="torchvision-defaults.toml"
model = "resnet18"
epochs = 90
batch_size = 32
lr = 0.1
scheduler = "step"
decay_epochs = [30, 60]
image_size = 224
crop_scale = 0.08
ema_decay = 0.99998
```

```sh title="Not run by the tests: 90 epochs of a ResNet-18 take hours without a GPU"
stoker train photos --recipe torchvision-defaults.toml
```

**Go on from its checkpoint.** ResNets have the same tensor names in timm and torchvision. Other families, such as
ViT, do not; a file that does not fit is refused before anything is written:

```sh
stoker train photos --model resnet18 --weights checkpoint.pth
```

**torchvision does better:** detection, segmentation, video, quantisation-aware training; scripts that are short
enough to edit.
""",
    "Ultralytics": """
**The same:** the batch size is that of all GPUs. A folder is enough. The best checkpoint is kept.

**Different:** flags are written `--epochs 30`, not `epochs=30`. Pretrained weights, mixed precision and
augmentation are on by default there, and off here. A moving average is always on there; here `--ema` turns it on.
The models are timm's, not YOLO's; a `.pt` file of Ultralytics is a pickled model, which is refused. This is near
`yolo classify train data=photos epochs=100`:

```toml title="yolo-like.toml"
model = "resnet18"
epochs = 100
batch_size = 64
optimizer = "adamw"
lr = 0.001
scheduler = "onecycle"
warmup_epochs = 3
min_lr_ratio = 0.01
weight_decay = 5e-4
ema = true
ema_decay = 0.9999
image_size = 224
crop_scale = 0.5
auto_augment = "rand"
random_erasing = 0.4
```

```sh title="Not run by the tests: downloads pretrained weights"
stoker train photos --recipe yolo-like.toml --pretrained
```

**Ultralytics does better:** detection, segmentation, pose, tracking, video; many export formats; `batch=-1`; Apple
GPUs and Windows. Its licence is AGPL-3.0, Stoker's is Apache-2.0.
""",
    "Lightning": """
**The same:** DDP, one process for each GPU; deterministic kernels.

**Different in kind:** Lightning runs your training step; Stoker has one of its own. If you need your own loss, your
own outputs or your own loop, stay with Lightning and use [Stoker's loader](loader.md) as its DataLoader
(`examples/lightning_loop.py`) and [`stoker.Meter`](verdict.md#in-any-pytorch-loop) to learn what limits it.

**Go on from its checkpoint:** `--weights last.ckpt`, where the LightningModule keeps a model of timm as `self.model`.

**Lightning does better:** any task and loss, FSDP and DeepSpeed, TPUs and Apple GPUs, callbacks, many loggers,
`fast_dev_run`.
""",
    "Composer": """
**The same:** runs that are made to be interrupted; micro-batches that halve when memory ends; EMA, mixup, cutmix,
label smoothing, progressive resizing.

**Different in kind:** in Composer you write the model, the loaders and the list of algorithms in Python; here each is
a flag. `autoresume` needs a run name and a save folder there; here the name follows from recipe and images. A
checkpoint of Composer (weights below `state`) is not taken: save `model.state_dict()` for `--weights`.

**Composer does better:** language models, FSDP and tensor parallelism, checkpoints and streaming data sets in object
stores, SAM, SWA, BlurPool and other algorithms.
""",
    "fastai": """
**The same:** a folder is enough, and fine-tuning trains the head first.

**Different in kind:** fastai lives in a notebook; Stoker is a command whose runs a notebook reads
([frames](looking.md#frames)). Pretrained weights and Adam are the defaults there. `learn.fine_tune(9)` is here:

```sh title="Not run by the tests: downloads pretrained weights"
stoker train photos --recipe finetune --model resnet34 --pretrained --epochs 10
```

A file of `learn.save()` has fastai's own tensor names, and does not fit a model of timm. `export.pkl` is a pickle,
which Stoker never loads.

**fastai does better:** the learning-rate finder, the cleaner for labels, text and tables, multi-label targets,
segmentation, teaching.
""",
    "other scripts": """
Flags that many training scripts have, and that articles show. Each script has its own meaning of some of them.
""",
}


def in_table(text: str) -> str:
    """A note as the cell of a table, with its flags as code."""
    return CODE.sub(lambda match: f"`{match[0]}`", text).replace("|", "\\|")


def ours(row: ForeignSetting) -> str:
    """What Stoker has, with a link to its description."""
    if row.ours in SPECS:
        flag = f"--{row.ours.replace('_', '-')}"
        shown = f"{row.ours} = ..." if SPECS[row.ours].metadata["rare"] else flag
        return f"[`{shown}`](recipe-keys.md#{row.ours})"
    if row.ours.startswith("--"):
        return f"[`{row.ours}`](commands.md#train)"
    return f"[`{row.ours}`](commands.md#{row.ours.split()[1]})" if row.ours else "-"


def section(tool: OtherTool) -> str:
    """The part of the page about one tool."""
    lines = [f"\n## {tool.name}\n{INTRODUCTIONS[tool.name]}"]
    lines += [f"\n### {tool.name}: every setting\n"]
    newest = f"Newest version when this was written: {tool.version} ({tool.program}). "
    read = f"Names and defaults were read in {tool.checked}.\n"
    lines += [f"\n{newest if tool.version else ''}{read}"]
    lines += [f"\n| {tool.name} | Stoker | difference |\n|---|---|---|\n"]
    for row in tool.rows:
        theirs = ", ".join(f"`{each}`" for each in spellings(row.theirs))
        lines.append(f"| {theirs} | {ours(row)} | {in_table(row.note)} |\n")
    return "".join(lines)


def spellings(theirs: str) -> list[str]:
    """The settings of a row. A comma within brackets separates none."""
    return re.findall(r"(?:[^,(]|\([^)]*\))+", theirs.replace(", ", ","))


def page() -> str:
    """The whole page."""
    return START + "".join(section(tool) for tool in other_tools())
