"""What this machine can do, as plain lines: every ceiling in images a second."""

from __future__ import annotations

from stoker.measure.environment import Environment
from stoker.measure.findings import Finding
from stoker.measure.trials.forecast import Forecast
from stoker.measure.trials.loading import LoadingSpeed
from stoker.measure.trials.storage import DiskSpeed
from stoker.measure.verdict import verdict_of
from stoker.recipe.recipe import Recipe
from stoker.text import plural, size
from stoker.train.trials.compute import Compute, Together

PRECISIONS = {"off": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}
NOTICED = 0.05
"""A difference below that is not worth a line."""
DOUBTFUL = 1.15
"""All at once cannot be faster than a part alone, but for noise."""
BUSY = 0.1
"""Cores that others use, as a share of ours, from which on it is said."""


def title(words: str) -> str:
    return f"\n{words}"


def row(name: str, words: str) -> str:
    return f"  {name:<22}{words}"


def rate(name: str, images_per_s: float, words: str = "") -> str:
    return f"  {name:<22}{images_per_s:>9,.0f} images/s  {words}".rstrip()


def environment(facts: Environment) -> list[str]:
    known = [f"{name} {number}" for name, number in facts.versions.items()]
    cores = plural(facts.cores, "core")
    if facts.machine_cores and facts.machine_cores != facts.cores:
        cores += f" of {facts.machine_cores}"
    lines = [
        row("versions", ", ".join(known)),
        row("processor", f"{facts.processor}, {cores}"),
        row("memory", size(facts.memory) + (f", /dev/shm {size(facts.shm)}" if facts.shm else "")),
    ]
    for number, gpu in enumerate(facts.gpus):
        kind = "tensor cores" if gpu.tensor_cores else "no tensor cores"
        lines.append(row(f"GPU {number}", f"{gpu.name}, {size(gpu.bytes)}, {kind}"))
    if facts.gpus:
        parts = (("driver", facts.driver), ("CUDA", facts.cuda), ("cuDNN", facts.cudnn))
        known = [f"{name} {number}" for name, number in parts if number]
        lines.append(row("driver", ", ".join(known)))
    else:
        lines.append(row("GPU", "none that PyTorch can use: the processor computes"))
    if facts.open_files is not None:
        most = "any number" if facts.open_files < 0 else f"{facts.open_files:,}"
        lines.append(row("open files", f"{most} at once"))
    for room in facts.rooms:
        inodes = "" if room.inodes is None else f" and {room.inodes:,} files"
        lines.append(row(f"room for {room.what}", f"{size(room.free)}{inodes} free at {room.path}"))
    if facts.synchronised is not None:
        lines.append(row("clock", "follows another" if facts.synchronised else "on its own"))
    lines.append(row("decoding by region", facts.region or "in use"))
    return lines


def odd(found: Finding) -> str:
    return f"  ! {found.words}: {found.action}"


def storage(found: DiskSpeed, image_bytes: float | None) -> list[str]:
    lines = []
    names = (("read in a row", found.row, "1 thread"), ("read at random", found.random, ""))
    for name, read, how in names:
        state = "cold" if read.is_cold else "NOT cold"
        how = how or f"64 kB blocks, {plural(found.threads, 'thread')}"
        words = f"{read.mb_per_s:,.0f} MB/s, {state} ({how})"
        if image_bytes:
            lines.append(rate(name, read.images_per_s(image_bytes), words))
        else:
            lines.append(row(name, words))
    if found.written_mb_per_s is not None:
        lines.append(row("write", f"{found.written_mb_per_s:,.0f} MB/s, onto the disk"))
    if found.metadata:
        done = "made, looked up, removed" if found.metadata.made else "looked up and opened"
        lines.append(row("small files", f"{found.metadata.files_per_s:,.0f} a second {done}"))
    if image_bytes:
        lines.append(row("", f"at {size(image_bytes)} an image, as stored"))
    if not found.was_cold:
        lines.append(
            row("", "the files could not be dropped from memory: how fast the disk is, is unknown")
        )
    return lines


def loader(found: LoadingSpeed) -> list[str]:
    cold, warm = found.passes["loader cold"], found.passes["loader warm"]
    binds = found.bound_by
    lines = [
        rate(
            f"loader {state}",
            found.passes[f"loader {state}"].images_per_s,
            f"{binds[state]} binds it; {done.images_per_cpu_s:,.0f} for each second of a core",
        )
        for state, done in (("cold", cold), ("warm", warm))
    ]
    if not found.was_cold:
        lines[0] += "; NOT cold"
    for name in ("decode", "synthetic"):
        what = {"decode": "bytes in memory", "synthetic": "hand-over alone"}[name]
        lines.append(rate(name, found.passes[name].images_per_s, what))
    return lines


def compute(found: Compute) -> str:
    words = f"{found.cost.wall_s * 1e3:,.0f} ms a step of {found.batch_size} (+-{found.spread:.0%})"
    words += f", {found.cost.cpu_s:.2f} s of the cores"
    if found.fixed.wall_s > NOTICED * found.cost.wall_s:
        words += f", {found.fixed.wall_s * 1e3:,.0f} ms whatever the batch"
    if found.measured_size != found.batch_size:
        words += f"; measured with {found.measured_size} images at once, the rest is arithmetic"
    return rate(PRECISIONS[found.amp], found.images_per_s, words)


def advice(found: list[Compute], amp: str) -> list[str]:
    """A precision that is worth changing to."""
    own = next((each for each in found if each.amp == amp), found[0])
    best = max(found, key=lambda each: each.images_per_s)
    if best.images_per_s < (1 + NOTICED) * own.images_per_s:
        return []
    gain = best.images_per_s / own.images_per_s
    return [row("", f"--amp {best.amp} computes {gain:.1f} times as fast as {PRECISIONS[own.amp]}")]


def asked(recipe: Recipe) -> str:
    return (
        f"{recipe.model}, {recipe.image_size} px, batches of {recipe.batch_size}, "
        f"{PRECISIONS[recipe.amp]}"
    )


def prediction(together: Together, parts: Forecast, first_epoch: float | None) -> list[str]:
    """What training will reach, what binds it, and what would bind next."""
    step_ms = together.cost.wall_s * 1e3
    lines = [
        rate(
            "stoker train",
            together.images_per_s,
            f"{step_ms:,.0f} ms a step, measured over {plural(together.steps, 'real step')}",
        )
    ]
    if first_epoch is not None:
        lines.append(rate("its first epoch", first_epoch, "while the shards come from the disk"))
    lines.append(row("", "evaluation and checkpoints come on top"))
    binds = f"each measured alone; the lowest is {parts.binds.words}"
    lines.append(rate("the parts allow", parts.images_per_s, binds))
    verdict = verdict_of(together.facts)
    lines += [f"  {line}" for line in verdict.lines()] if verdict else []
    if together.images_per_s > DOUBTFUL * parts.images_per_s:
        lines.append(
            "  ! all at once was faster than a part alone: something disturbed that part; "
            "measure again"
        )
    return lines


def neighbours(cores: float | None, of: int) -> list[str]:
    if cores is None or cores < BUSY * of:
        return []
    return [
        f"  ! other programs used {cores:.1f} cores meanwhile: the figures are too low; "
        "end them and measure again"
    ]
