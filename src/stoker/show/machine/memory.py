"""The answer to `stoker doctor --memory GB` as lines of text."""

from __future__ import annotations

from stoker.doctor.memory import MemoryAnswer, PhaseMemory
from stoker.survive.remedies import SMALLEST_MICRO_BATCH
from stoker.text import plural
from stoker.train.trials.device_memory import (
    ACTIVATIONS,
    ALLOCATOR_SHARE,
    CONTEXT_BYTES,
    GB,
    INPUT,
    LIBRARY_BYTES,
    NCCL_BYTES,
    TEMPORARIES,
    Peak,
)

ERROR = 0.1
"""Predictions for a CPU are within this share of what real steps hold (docs/results/memory.md)."""


def lines(answer: MemoryAnswer) -> list[str]:
    """What fits, what it is made of, and what the prediction rests on."""
    recipe = answer.recipe
    gpus = "a GPU" if answer.world == 1 else f"each of {answer.world} GPUs"
    precision = "fp32" if recipe.amp == "off" else recipe.amp
    head = (
        f"Memory of {recipe.model} on {gpus} of {answer.memory_gb:g} GB: "
        f"{precision}, {recipe.optimizer}, {plural(answer.classes, 'class')}"
    )
    return [head, *verdict(answer), *phases(answer), *parts(answer), *basis(answer)]


def needs(answer: MemoryAnswer, peak: Peak) -> str:
    return (
        f"{gigabytes(peak.total)} of {answer.memory_gb:g} GB for "
        f"{plural(peak.images, 'image')} of {peak.image_size} px at once"
    )


def gigabytes(count: float) -> str:
    return f"{count / GB:,.1f}"


def verdict(answer: MemoryAnswer) -> list[str]:
    """What fits: training, then evaluation where it does not."""
    fitting, limit = answer.training, answer.memory_gb * GB
    if answer.fits and answer.evaluation.total > fitting.total:
        sentences = [f"fits: needs {needs(answer, answer.evaluation)}, in evaluation"]
    elif answer.micro_batch == 0:
        sentences = [f"fits: needs {needs(answer, fitting)}"]
    elif answer.micro_batch is None:
        sentences = [f"does not fit: needs {needs(answer, fitting)}: {advice(fitting, limit)}"]
    else:
        sentences = [
            f"does not fit in one pass: needs {needs(answer, answer.most.peak)}",
            f"--micro-batch {answer.micro_batch} fits: needs {needs(answer, fitting)}; the batch "
            f"and the learning rate stay, BatchNorm sees {answer.micro_batch} images at once",
        ]
    if answer.micro_batch is not None and fitting.total > (1 - ERROR) * limit:
        half = max(fitting.images // 2, SMALLEST_MICRO_BATCH)
        sentences.append(
            "! close to the limit: should it run out of memory, the run goes on with "
            f"{half} images at once"
        )
    evaluation, smaller = answer.evaluation, answer.eval_batch_size
    if smaller != 0:
        action = f"set --eval-batch-size {smaller}" if smaller else advice(evaluation, limit)
        sentences.append(f"! evaluation needs {needs(answer, evaluation)}: {action}")
    return [f"  {sentence}" for sentence in sentences]


def advice(peak: Peak, limit: float) -> str:
    """What makes a model fit of which not even the fewest images do."""
    by_images = sum(peak.parts[kind] for kind in (INPUT, ACTIVATIONS, TEMPORARIES))
    if peak.total - by_images > limit:
        return "choose a smaller --model, or a larger GPU"
    return "lower --image-size, choose a smaller --model, or a larger GPU"


def phases(answer: MemoryAnswer) -> list[str]:
    if len(answer.phases) == 1:
        return []
    return [row(phase_name(phase), phase.peak.total, "in one pass") for phase in answer.phases]


def phase_name(phase: PhaseMemory) -> str:
    return f"{phase.batch_size:,} of {phase.image_size} px"


def parts(answer: MemoryAnswer) -> list[str]:
    peak = answer.training
    rows = [row(name, count) for name, count in peak.parts.items() if count]
    evaluation = answer.evaluation
    images = f"{plural(evaluation.images, 'image')} of {evaluation.image_size} px at once"
    return [
        f"  At the peak of a step with {plural(peak.images, 'image')} at once",
        *rows,
        row("in all", peak.total),
        row("an evaluation, in all", evaluation.total, images),
    ]


def row(name: str, count: float, text: str = "") -> str:
    return f"    {name:<24}{count / GB:>8,.2f} GB  {text}".rstrip()


def basis(answer: MemoryAnswer) -> list[str]:
    libraries = (
        f"{gigabytes(CONTEXT_BYTES)} GB for the CUDA context, {gigabytes(LIBRARY_BYTES)} GB "
    )
    libraries += "for cuDNN and cuBLAS"
    if answer.world > 1:
        libraries += f", {gigabytes(NCCL_BYTES)} GB for NCCL"
    sentences = [
        f"predicted from shapes: within {ERROR:.0%} of the tensors that real steps hold on a CPU; "
        "never checked on a GPU",
        f"assumed: {libraries}, {ALLOCATOR_SHARE:.0%} for gaps between blocks; 1 GB is 10^9 bytes",
    ]
    if answer.recipe.compile:
        sentences.append("predicted without torch.compile, which usually keeps fewer activations")
    return [f"  {sentence}" for sentence in sentences]
