"""The model card, README.md of an export: what the model is, and code that uses it without Stoker.

Invariants: a pure function of plain facts. Names that come from files (classes, folders, models)
are escaped: in Markdown and HTML they are text and nothing else. The code blocks run as they are in
the folder of the export; a test runs them where Stoker cannot be imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.recipe.model_file import function_of
from stoker.text import plural, printable, size
from stoker.use.classifier import Preprocessing
from stoker.use.export.agreement import LOGIT_LIMIT, PROBABILITY_LIMIT, Difference
from stoker.use.export.figures import EvaluationFigures
from stoker.use.exported.files import CODE, GRAPH, PROGRAM, WEIGHTS

MOST_CLASSES = 20
"""Classes that the card names; classes.txt has all of them."""
_HTML = re.compile(r"[<>&\"']")
_MARKDOWN = re.compile(r"[\\`*{}\[\]()#+.!|~$:@=^]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
"""What means something inside a line; an underscore between letters does not."""


def escaped(text: str) -> str:
    """Text of unknown origin that Markdown and HTML show as it is, in one line."""
    text = _MARKDOWN.sub(lambda match: f"\\{match[0]}", printable(text))
    return _HTML.sub(lambda match: f"&#{ord(match[0])};", text.replace("&", "&amp;"))


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of."""

    model: str
    is_timm: bool
    classes: list[str]
    preprocessing: Preprocessing
    recipe: str
    """The name of the recipe."""
    values: Mapping[str, Any]
    """The values of the recipe."""
    data: str
    """The name of the packed set."""
    facts: Mapping[str, Any]
    """What config.json says for Stoker: step, fingerprint, files and their hashes."""
    training_images: int
    figures: EvaluationFigures | None
    differences: Mapping[str, Difference]
    checked_on: str
    """The images that programs were compared on, such as "64 validation images"."""
    pretrained_license: str = ""
    """The license of the weights that training began with, where they have one."""


def model_card(card: CardFacts) -> str:
    """The text of README.md."""
    sections = [
        front_matter(card),
        [f"# {escaped(card.model)} on {escaped(card.data)}", "", *introduction(card)],
        ["## Result", "", *result(card)],
        ["## Classes", "", *class_list(card)],
        ["## Use", "", *use(card)],
        ["## Preprocessing", "", *preprocessing(card)],
        ["## Training", "", *training(card)],
        ["## Limits", "", *limits(card)],
        ["## License", "", *license_lines(card)],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def front_matter(card: CardFacts) -> list[str]:
    """YAML that model hubs read: constants alone, so that no name can change its meaning."""
    return [
        "---",
        "license: unknown",
        f"library_name: {'timm' if card.is_timm else 'stoker'}",
        "pipeline_tag: image-classification",
        "tags:",
        "- image-classification",
        "- stoker",
        "---",
    ]


def introduction(card: CardFacts) -> list[str]:
    side = card.preprocessing.image_size
    return [
        f"An image classifier: {escaped(card.model)} for images of {side} x {side} pixels, trained "
        f"on {escaped(card.data)} with Stoker {card.facts['version']}."
    ]


def result(card: CardFacts) -> list[str]:
    figures = card.figures
    if figures is None:
        return ["The run did not evaluate these weights: measure them before you use them."]
    rows = [("top-1", percent(figures.top1, figures.images))]
    if len(card.classes) > 5:
        rows.append(("top-5", percent(figures.top5, figures.images)))
    if figures.macro is not None:
        rows.append(("mean over classes", f"{figures.macro:.2%}"))
    lines = ["| measure | result |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
    lines += ["", f"Measured by the run on {plural(figures.images, 'image')} held out of training."]
    if figures.worst:
        worst = (f"{escaped(row.name)} {percent(row.top1, row.images)}" for row in figures.worst)
        lines[-1] += f" Worst classes: {'; '.join(worst)}."
    return lines


def percent(right: int, images: int) -> str:
    return f"{right / max(images, 1):.2%} ({right:,} of {images:,})"


def class_list(card: CardFacts) -> list[str]:
    names = ", ".join(escaped(name) for name in card.classes[:MOST_CLASSES])
    more = len(card.classes) - MOST_CLASSES
    rest = f" and {more:,} more" if more > 0 else ""
    return [
        f"{plural(len(card.classes), 'class')}: {names}{rest}. `classes.txt` lists them, one a "
        "line, in the order of the outputs."
    ]


def use(card: CardFacts) -> list[str]:
    """A block of code for each format that was exported."""
    lines = ["In this folder, with an image `photo.jpg`.", ""]
    if WEIGHTS in card.facts["files"]:
        lines += weights_block(card)
    if PROGRAM in card.facts["files"]:
        lines += [f"`{PROGRAM}`, with PyTorch alone (load only files of people you trust):", ""]
        lines += code("import numpy as np, torch", *pixels_code(card), *PROGRAM_CODE, ANSWER_CODE)
    if GRAPH in card.facts["files"]:
        lines += [f"`{GRAPH}`, with onnxruntime alone:", ""]
        imports = "import numpy as np, onnxruntime"
        lines += code(imports, *pixels_code(card), *GRAPH_CODE, ANSWER_CODE)
    if card.differences:
        side = card.preprocessing.image_size
        lines += [
            f"Input: `images`, bytes (uint8), count x {side} x {side} x 3, RGB, any count; they "
            "are normalised inside. Outputs: `logits` and `probabilities`, count x "
            f"{len(card.classes)} numbers of 32 bits.",
            "",
            *agreement(card),
            "",
        ]
    lines.append("With Stoker, and exactly its own preprocessing: `stoker predict . photo.jpg`.")
    return lines


PROGRAM_CODE = (
    f'model = torch.export.load("{PROGRAM}").module()',
    "logits, probabilities = model(torch.from_numpy(pixels)[None])",
)
GRAPH_CODE = (
    f'session = onnxruntime.InferenceSession("{GRAPH}")',
    'logits, probabilities = session.run(None, {"images": pixels[None]})',
)
ANSWER_CODE = (
    'print(open("classes.txt", encoding="utf-8").read().splitlines()[probabilities[0].argmax()])'
)


def pixels_code(card: CardFacts) -> tuple[str, ...]:
    side, crop = card.preprocessing.image_size, card.preprocessing.crop_pct
    fit = f"ImageOps.fit(image, ({side}, {side}), Image.BILINEAR, bleed={(1 - crop) / 2:g})"
    return (
        "from PIL import Image, ImageOps",
        'image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")',
        f"pixels = np.array({fit})",
    )


def weights_block(card: CardFacts) -> list[str]:
    if CODE in card.facts["files"]:
        return own_weights_block(card)
    if not card.is_timm:
        return [
            f"`{WEIGHTS}` holds the weights alone: {escaped(card.model)} is defined in Stoker, so "
            "it needs Stoker. `stoker export --to torch` writes a file that runs without it.",
            "",
        ]
    return [
        f"`{WEIGHTS}`, with timm (whose resizing differs a little from Stoker's):",
        "",
        *code(
            "import timm, torch",
            "from PIL import Image, ImageOps",
            "from timm.data import create_transform, resolve_model_data_config",
            'model = timm.create_model("local-dir:.", pretrained=True).eval()',
            "transform = create_transform(**resolve_model_data_config(model))",
            'image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")',
            "probabilities = model(transform(image)[None]).softmax(1)",
            ANSWER_CODE,
        ),
    ]


def own_weights_block(card: CardFacts) -> list[str]:
    """The use of the weights of a model of the user's own, with its code."""
    spec = card.preprocessing.normalise
    return [
        f"`{WEIGHTS}`, with the code in `{CODE}` (read it before you run it):",
        "",
        *code(
            "import numpy as np, torch",
            *pixels_code(card),
            f"from model import {function_of(card.model)}",
            "from safetensors.torch import load_file",
            f"model = {function_of(card.model)}({len(card.classes)}).eval()",
            f'model.load_state_dict(load_file("{WEIGHTS}"))',
            f"pixels = (pixels / 255 - {list(spec.mean)}) / {list(spec.std)}",
            "images = torch.from_numpy(pixels).float().permute(2, 0, 1)[None]",
            "probabilities = model(images).softmax(1)",
            ANSWER_CODE,
        ),
    ]


def code(*lines: str) -> list[str]:
    return ["```python", *lines, "```", ""]


def short(difference: float) -> str:
    return f"{difference:.1e}" if difference else "0"


def agreement(card: CardFacts) -> list[str]:
    parts = [
        f"`{name}`: logits differ by at most {short(one.logits)}, probabilities by at most "
        f"{short(one.probabilities)}, {plural(one.other_classes, 'image')} with another class"
        for name, one in card.differences.items()
    ]
    return [
        f"Compared with the model in PyTorch on {card.checked_on}. {'; '.join(parts)}. An export "
        f"fails above {LOGIT_LIMIT:g} of the largest logit, or {PROBABILITY_LIMIT:g} of a "
        "probability."
    ]


def preprocessing(card: CardFacts) -> list[str]:
    spec = card.preprocessing
    side, storage = spec.image_size, spec.storage
    mean, std = (
        ", ".join(f"{x:g}" for x in xs) for xs in (spec.normalise.mean, spec.normalise.std)
    )
    which, limit = "longer", storage.max_side
    if storage.min_side:
        which, limit = "shorter", storage.min_side
    steps = ["Decode to RGB with 8 bits a colour; turn it upright by its EXIF orientation."]
    if limit and storage.codec != "original":
        steps.append(
            f"Shrink it, where its {which} side has more than {limit} pixels, to {limit}, by "
            "averaging areas: training images were stored so."
        )
    steps += [
        f"Cut out the centred square whose side is {spec.crop_pct:g} of the shorter side.",
        f"Resize it to {side} x {side} pixels: bilinear, or by averaging areas where the square is "
        "at least twice as large. A JPEG is first shrunk by its decoder, by 2, 4 or 8, as long as "
        f"the square keeps {side} pixels.",
        f"Divide by 255, subtract the mean ({mean}), divide by the standard deviation ({std}).",
    ]
    lines = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    return [
        *lines,
        "",
        "The code above resizes with Pillow or timm in one step: its pixels differ from these by a "
        "little, and so do the last digits of its probabilities.",
    ]


def training(card: CardFacts) -> list[str]:
    values, facts = card.values, card.facts
    epochs = values.get("epochs")
    length = plural(epochs, "epoch") if isinstance(epochs, int) else "? epochs"
    start = "pre-trained weights" if values.get("pretrained") else "random weights"
    average = ", moving average of the weights" if values.get("ema") else ""
    return [
        f"- Data: {escaped(card.data)}, {plural(card.training_images, 'training image')}, "
        f"fingerprint `{plain(facts['fingerprint'])}`",
        f"- Recipe: {escaped(card.recipe)}, digest `{plain(facts['recipe_digest'])}`: "
        f"{length}, batch size {number(values.get('batch_size'))}, "
        f"{escaped(str(values.get('optimizer', '')))}, seed {number(values.get('seed'))}, from "
        f"{start}{average}",
        f"- Checkpoint: step {facts['step']:,}",
    ]


def plain(text: str) -> str:
    """A hash as it stands in a recipe or a set; nothing of what is not one."""
    return "".join(re.findall(r"[0-9A-Za-z]", text))[:64]


def number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def limits(card: CardFacts) -> list[str]:
    return [
        "It answers each image with one of its classes, also an image that shows none of them. "
        "The result above holds for images like those it was measured on: the same cameras, "
        "places and ways of labelling. Its probabilities are those of a softmax and were not "
        "calibrated. Nothing was measured about people, fairness or safety.",
        "",
        f"Files: {', '.join(file_text(*item) for item in card.facts['files'].items())}.",
    ]


def file_text(name: str, facts: Mapping[str, Any]) -> str:
    return f"`{name}` ({size(facts['bytes'])}, SHA-256 `{facts['sha256'][:16]}...`)"


def license_lines(card: CardFacts) -> list[str]:
    lines = [
        "None is stated. State a license here and in the first lines of this file before you share "
        "the model; look at the rights in the training images first."
    ]
    if card.values.get("pretrained"):
        license = escaped(card.pretrained_license) or "see their origin"
        lines.append(f"Training began with weights of timm; their license: {license}.")
    return lines
