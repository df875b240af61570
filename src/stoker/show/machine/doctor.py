"""The findings of `stoker doctor` as lines of text: every ceiling in images a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.doctor.visit import CLASSES, NOTICEABLE
from stoker.measure.environment import Environment
from stoker.measure.findings import Finding
from stoker.measure.trials.forecast import Forecast
from stoker.measure.trials.link import LinkReport
from stoker.measure.trials.loading import LoadingSpeed
from stoker.measure.trials.storage import DiskSpeed
from stoker.measure.verdict import verdict_of
from stoker.recipe.recipe import Recipe
from stoker.show.machine import link
from stoker.text import plural, size
from stoker.train.trials.compute import Compute, Together

PRECISIONS = {"off": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}
DOUBTFUL = 1.15
"""Everything at once cannot be faster than this times a part alone, except by a disturbance."""
BUSY = 0.1
"""Cores that other programs use are reported from this share of ours on."""


def lines(name: str, *values: Any) -> list[str]:
    """The lines for a finding that a visit has yielded."""
    return FORMATS[name](*values)


def row(name: str, text: str) -> str:
    return f"  {name:<22}{text}"


def rate(name: str, images_per_s: float, text: str = "") -> str:
    return f"  {name:<22}{images_per_s:>9,.0f} images/s  {text}".rstrip()


def environment(facts: Environment, problems: Sequence[Finding] = ()) -> list[str]:
    cores = plural(facts.cores, "core")
    if facts.machine_cores and facts.machine_cores != facts.cores:
        cores += f" of {facts.machine_cores}"
    shm = f", /dev/shm {size(facts.shm)}" if facts.shm else ""
    lines = [
        "This machine",
        row("versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())),
        row("processor", f"{facts.processor}, {cores}"),
        row("memory", size(facts.memory) + shm),
    ]
    for number, gpu in enumerate(facts.gpus):
        kind = "tensor cores" if gpu.tensor_cores else "no tensor cores"
        lines.append(row(f"GPU {number}", f"{gpu.name}, {size(gpu.bytes)}, {kind}"))
    if facts.gpus:
        parts = (("driver", facts.driver), ("CUDA", facts.cuda), ("cuDNN", facts.cudnn))
        lines.append(row("driver", ", ".join(f"{name} {text}" for name, text in parts if text)))
    else:
        lines.append(row("GPU", "none that PyTorch can use: the processor computes"))
    if facts.open_files is not None:
        most = "any number" if facts.open_files < 0 else f"{facts.open_files:,}"
        lines.append(row("open files", f"{most} at once"))
    for disk in facts.rooms:
        inodes = "" if disk.inodes is None else f" and {disk.inodes:,} files"
        lines.append(
            row(f"space for {disk.what}", f"{size(disk.free)}{inodes} free at {disk.path}")
        )
    if facts.synchronised is not None:
        lines.append(row("clock", "synchronised" if facts.synchronised else "not synchronised"))
    lines.append(row("compiled extra", facts.region or "in use"))
    return [*lines, *(f"  ! {problem.words}: {problem.action}" for problem in problems)]


def storage(speed: DiskSpeed, image_bytes: float | None) -> list[str]:
    lines = []
    blocks = f"64 kB blocks, {plural(speed.threads, 'thread')}"
    reads = (("read in a row", speed.row, "1 thread"), ("read at random", speed.random, blocks))
    for name, read, method in reads:
        state = "cold" if read.is_cold else "NOT cold"
        text = f"{read.mb_per_s:,.0f} MB/s, {state} ({method})"
        images_per_s = read.images_per_s(image_bytes) if image_bytes else None
        lines.append(rate(name, images_per_s, text) if images_per_s else row(name, text))
    if speed.written_mb_per_s is not None:
        lines.append(row("write", f"{speed.written_mb_per_s:,.0f} MB/s, onto the disk"))
    if speed.metadata:
        work = "created, looked up, removed" if speed.metadata.made else "looked up and opened"
        lines.append(row("small files", f"{speed.metadata.files_per_s:,.0f} a second {work}"))
    if image_bytes:
        lines.append(row("", f"at {size(image_bytes)} an image, as stored"))
    if not speed.was_cold:
        lines.append(
            row("", "files stayed in the page cache: the speed of the disk itself is unknown")
        )
    return lines


def loader(speed: LoadingSpeed) -> list[str]:
    lines = []
    for state in ("cold", "warm"):
        stage = speed.passes[f"loader {state}"]
        cpu_rate = f"{stage.images_per_cpu_s:,.0f} images a CPU second"
        text = f"limited by {speed.bound_by[state]}; {cpu_rate}"
        lines.append(rate(f"loader {state}", stage.images_per_s, text))
    if not speed.was_cold:
        lines[0] += "; NOT cold"
    for name, text in (("decode", "bytes in memory"), ("synthetic", "hand-over alone")):
        lines.append(rate(name, speed.passes[name].images_per_s, text))
    if speed.plain is not None:
        gain = f"it makes {speed.extra_gain:.2f} times as many a CPU second"
        text = f"without the compiled extra: {gain}"
        lines.append(rate("decode", speed.plain.images_per_s, text))
    return lines


def compute_begins(recipe: Recipe, phases: int, parameters: int | None) -> list[str]:
    lines = [
        "",
        f"Computing, alone: {recipe.model}, {recipe.image_size} px, batches of "
        f"{recipe.batch_size}, {PRECISIONS[recipe.amp]}",
    ]
    if parameters is not None:
        lines.append(row("", f"{parameters / 1e6:.1f} M parameters with {CLASSES:,} classes"))
    if phases > 1:
        lines.append(row("", f"the longest of the {phases} phases"))
    if recipe.compile:
        lines.append(row("", "without torch.compile, which would take minutes"))
    return lines


def compute(step: Compute) -> list[str]:
    text = f"{step.cost.wall_s * 1e3:,.0f} ms a step of {step.batch_size} (+-{step.spread:.0%})"
    text += f", {step.cost.cpu_s:.2f} CPU seconds"
    if step.fixed.wall_s > NOTICEABLE * step.cost.wall_s:
        text += f", {step.fixed.wall_s * 1e3:,.0f} ms of it for any batch size"
    if step.measured_size != step.batch_size:
        text += f"; computed from steps of {step.measured_size} images"
    return [rate(PRECISIONS[step.amp], step.images_per_s, text)]


def precisions(own: Compute, every: Sequence[Compute]) -> list[str]:
    """A precision that is worth changing to."""
    best = max(every, key=lambda step: step.images_per_s)
    if best.images_per_s < (1 + NOTICEABLE) * own.images_per_s:
        return []
    gain = best.images_per_s / own.images_per_s
    return [row("", f"--amp {best.amp} computes {gain:.1f} times as fast as {PRECISIONS[own.amp]}")]


def together(measured: Together, parts: Forecast, first_epoch: float | None) -> list[str]:
    """The throughput that training will reach, what limits it, and what would limit it next."""
    step_ms, steps = measured.cost.wall_s * 1e3, plural(measured.steps, "real step")
    text = f"{step_ms:,.0f} ms a step, measured over {steps}"
    lines = [rate("stoker train", measured.images_per_s, text)]
    if first_epoch is not None:
        lines.append(rate("its first epoch", first_epoch, "while shards are read from the disk"))
    lines.append(row("", "without evaluation and checkpoints"))
    lowest = f"each measured alone; the lowest is {parts.binds.words}"
    lines.append(rate("the parts allow", parts.images_per_s, lowest))
    verdict = verdict_of(measured.facts)
    lines += [f"  {line}" for line in verdict.lines()] if verdict else []
    if measured.images_per_s > DOUBTFUL * parts.images_per_s:
        lines.append(
            "  ! everything at once was faster than a part alone, so something disturbed that "
            "part: measure again"
        )
    return lines


def neighbours(cores: float | None, own_cores: int) -> list[str]:
    if cores is None or cores < BUSY * own_cores:
        return []
    return [
        f"  ! other programs used {cores:.1f} cores during the measurements, so the figures are "
        "too low: end them and measure again"
    ]


def with_exchange(links: LinkReport, compute_s: float, batch: int, speed: float) -> list[str]:
    return [
        "",
        f"On {links.world} ranks",
        rate("compute, exchange", speed, f"{batch // links.world} images a rank and step"),
        *link.step_lines(links, compute_s, batch),
    ]


FORMATS: dict[str, Callable[..., list[str]]] = {
    "environment": environment,
    "links begin": lambda: ["", "Links between ranks, alone"],
    "links": link.lines,
    "storage begins": lambda folder: ["", f"The disk of {folder}, alone"],
    "storage": storage,
    "not measured": lambda reason: [row("", f"not measured: {reason}")],
    "loader begins": lambda: ["", "Loading, alone"],
    "loader": loader,
    "compute begins": compute_begins,
    "compute": compute,
    "precisions": precisions,
    "together begins": lambda: ["", "All at once"],
    "together": together,
    "neighbours": neighbours,
    "with exchange": with_exchange,
}
