"""`stoker export`: a checkpoint becomes a folder that others can use.

    OUT/model.safetensors, model.pt2, model.onnx     what --to names
    OUT/config.json                                  timm's layout, and what Stoker needs
    OUT/classes.txt                                  a class a line, in the order of the outputs
    OUT/README.md                                    the model card

Invariants: the weights are those that the run evaluates: the moving average where it keeps one. A
program is compared with the model before it counts. The folder appears complete or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from safetensors.torch import save

from stoker.commit import sha256_file
from stoker.faults import reach
from stoker.recipe.model_file import is_own
from stoker.run.directory import Run
from stoker.survive.stopping import UNCHANGED, StopRequest, ends_here
from stoker.text import plural, printable
from stoker.train.model.names import OWN
from stoker.train.model.own_code import own_code_of
from stoker.train.model.weight_places import CONFIG
from stoker.use.classifier import NO_CODE, Classifier, CodeConsent, open_classifier
from stoker.use.export.agreement import CheckImages, Difference, check_images, difference
from stoker.use.export.config import stoker_facts, timm_config
from stoker.use.export.figures import EvaluationFigures, figures_of
from stoker.use.export.model_card import CardFacts, model_card
from stoker.use.export.program import CPU, traced, write_graph, write_program
from stoker.use.export.target import FILE_OF, draft_of
from stoker.use.exported.files import CODE, GRAPH, PROGRAM, WEIGHTS

CLASSES, CARD = "classes.txt", "README.md"


@dataclass(frozen=True)
class ExportOptions:
    """What to export: the values of the flags."""

    formats: Sequence[str] = ("safetensors",)
    checkpoint: str = "best"
    overwrite: bool = False
    consent: CodeConsent = NO_CODE


@dataclass(frozen=True)
class ExportReport:
    """What was exported."""

    origin: str
    model: str
    classes: int
    figures: EvaluationFigures | None
    bytes: dict[str, int]
    """Of each model file."""
    differences: dict[str, Difference]
    checked_on: str


def export_run(
    run_path: Path, out: Path, options: ExportOptions, stop: StopRequest | None = None
) -> ExportReport:
    """Export a checkpoint of a run to the folder `out`. Raises BadRequest where there is none or
    `out` must not be replaced, StokerError where the model cannot be exported or the disk fails. A
    stop request while torch traces the model ends the process."""
    run = Run(run_path)
    classifier = open_classifier(run_path, CPU, options.checkpoint, options.consent)
    with draft_of(out, overwrite=options.overwrite) as draft:
        clean_up = partial(rmtree, draft, ignore_errors=True)
        tracing = ends_here(stop, "exporting", UNCHANGED, clean_up) if stop else nullcontext()
        write_models(classifier, draft, options.formats, tracing)
        reach("export:models")
        written = [name for name in (*FILE_OF.values(), CODE) if (draft / name).exists()]
        check, differences = compare(run, classifier, draft, written)
        checked_on = plural(len(check.images), f"{check.kind} image") if check else ""
        report = ExportReport(
            classifier.origin,
            classifier.recipe.model,
            len(classifier.classes),
            figures_of(run, classifier.facts["position"]),
            {name: (draft / name).stat().st_size for name in written},
            differences,
            checked_on,
        )
        describe(run, classifier, draft, report)
    return report


def write_models(
    classifier: Classifier,
    draft: Path,
    formats: Sequence[str],
    tracing: AbstractContextManager[None],
) -> None:
    """Write the model in each format. Raises as `export_run` does."""
    if "safetensors" in formats:
        # Clones, because the format refuses tensors that share memory.
        tensors = classifier.model.state_dict().items()
        weights = {name: tensor.contiguous().clone() for name, tensor in tensors}
        (draft / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
        if code := own_code_of(classifier.recipe):
            (draft / CODE).write_bytes(code.text.encode())
    if {"torch", "onnx"} & {*formats}:
        with tracing:
            program = traced(classifier)
            if "torch" in formats:
                write_program(program, draft / PROGRAM, classifier)
            if "onnx" in formats:
                write_graph(program, draft / GRAPH, classifier)


def compare(
    run: Run, classifier: Classifier, draft: Path, written: Sequence[str]
) -> tuple[CheckImages | None, dict[str, Difference]]:
    """The images that programs were compared on, and the difference of each. Raises StokerError
    where one is too large."""
    programs = [name for name in written if name in (PROGRAM, GRAPH)]
    if not programs:
        return None, {}
    record = run.record
    check = check_images(classifier, record["data"], record["fingerprint"])
    return check, {name: difference(draft / name, classifier, check) for name in programs}


def describe(run: Run, classifier: Classifier, draft: Path, report: ExportReport) -> None:
    """Write config.json, the classes and the model card."""
    facts = stoker_facts(
        classifier,
        {
            "figures": report.figures.as_data() if report.figures else None,
            "compared_on": report.checked_on,
            "differences": {name: one.as_data() for name, one in report.differences.items()},
            "files": {
                name: {"bytes": count, "sha256": sha256_file(draft / name)}
                for name, count in report.bytes.items()
            },
        },
    )
    config = {**timm_config(classifier), "stoker": facts}
    write_text(draft / CONFIG, json.dumps(config, indent=1, ensure_ascii=False) + "\n")
    write_text(draft / CLASSES, "".join(f"{printable(name)}\n" for name in classifier.classes))
    write_text(draft / CARD, model_card(card_facts(run, classifier, facts, report)))


def write_text(path: Path, text: str) -> None:
    # Names from files may hold surrogates, which UTF-8 has no bytes for; JSON reads these escapes.
    path.write_bytes(text.encode("utf-8", "backslashreplace"))


def card_facts(
    run: Run, classifier: Classifier, facts: dict[str, Any], report: ExportReport
) -> CardFacts:
    record, starts = run.record, run.starts()
    own = getattr(classifier.model, "pretrained_cfg", None) or {}
    return CardFacts(
        model=report.model,
        is_timm=OWN.fullmatch(report.model) is None and not is_own(report.model),
        classes=classifier.classes,
        preprocessing=classifier.preprocessing,
        recipe=record["recipe"],
        values=run.values,
        data=Path(record["data"]).name,
        facts=facts,
        training_images=starts[-1].get("samples", 0) if starts else 0,
        figures=report.figures,
        differences=report.differences,
        checked_on=report.checked_on,
        pretrained_license=str(own.get("license") or ""),
    )
