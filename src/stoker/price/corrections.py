"""What a catalogue of machines gets wrong: GPU names, counts and memories.

Invariants: a GPU has one name at every provider, and a machine a whole number of GPUs. A part of a
GPU is a GPU of its own, named by its memory (L4-3GB). Names and values come from `tables/`, where
each value has its source; a row that was changed says so.

    A100-40GB, A100-80GB, V100-16GB, V100-32GB    by memory, whatever the form (SXM, PCIe)
    H100 (SXM), H100-PCIe, H100-NVL               by form: their speeds differ
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

TABLES = Path(__file__).parent / "tables"
ANY = "*"
LARGER: dict[tuple[str, float | None], str] = {
    ("A100-40GB", 80.0): "A100-80GB",
    ("V100-16GB", 32.0): "V100-32GB",
}
"""GPUs of which some catalogues give the memory in a column of its own, not in the name."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """A machine as a catalogue describes it."""

    provider: str
    machine: str
    gpu: str
    gpus: float
    gpu_memory_gib: float | None
    vcpus: float
    memory_gib: float
    correction: str = ""
    """What was changed, and after whom; empty where the catalogue is right."""


@cache
def rows_of(name: str) -> tuple[Mapping[str, str], ...]:
    """The rows of a table of the package."""
    with (TABLES / name).open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def matches(row: Mapping[str, str], **values: str) -> bool:
    return all(row[key] in (ANY, value) for key, value in values.items())


def gpu_name(spelling: str, provider: str = "", machine: str = "") -> str:
    """The one name of a GPU. A spelling that no row knows is the name."""
    for row in rows_of("gpu_names.csv"):
        where = matches(row, provider=provider, machine=machine)
        if where and row["spelling"].lower() == spelling.lower():
            return row["name"]
    return spelling


def is_gpu(name: str, text: str) -> bool:
    """Whether a GPU is meant by what a user types: A100 means A100-40GB and A100-80GB."""
    name, text = name.lower(), text.lower().replace(" ", "")
    return name == text or name.startswith(f"{text}-") or name == gpu_name(text).lower()


def corrected(facts: MachineFacts) -> MachineFacts:
    """The machine with the name of its GPU, and with what the catalogue lacks or gets wrong."""
    name = gpu_name(facts.gpu, facts.provider, facts.machine)
    facts = replace(facts, gpu=LARGER.get((name, facts.gpu_memory_gib), name))
    for row in rows_of("corrections.csv"):
        if matches(row, provider=facts.provider, machine=facts.machine, gpu=facts.gpu):
            facts = with_value(facts, row["column"], float(row["value"]), row["source"])
    if 0 < facts.gpus < 1 and facts.gpu_memory_gib:
        name = f"{facts.gpu}-{facts.gpu_memory_gib:.0f}GB"
        note = f"{facts.gpus:g} of a GPU counts as one {name}"
        facts = replace(facts, gpu=name, gpus=1, correction=joined(facts.correction, note))
    return facts


def with_value(facts: MachineFacts, column: str, value: float, source: str) -> MachineFacts:
    """The machine with a count that is corrected, or with a memory that is missing."""
    if column == "gpus" and facts.gpus != value:
        note = f"gpus {facts.gpus:g} -> {value:g} ({source})"
        return replace(facts, gpus=value, correction=joined(facts.correction, note))
    if column == "gpu_memory_gib" and not facts.gpu_memory_gib:
        note = f"gpu memory {value:g} GiB ({source})"
        return replace(facts, gpu_memory_gib=value, correction=joined(facts.correction, note))
    return facts


def joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def with_linear_memory(machines: Sequence[MachineFacts]) -> list[MachineFacts]:
    """The machines, with a memory that grows with the square of the GPUs divided by their number.
    RunPod's rows for some GPUs are so: 496 GiB on one machine become 3,968 GiB on paper."""
    single = smallest_memory(facts for facts in machines if facts.gpus == 1)
    answers = []
    for facts in machines:
        one = single.get((facts.provider, facts.gpu))
        if one and facts.gpus > 1 and is_squared(facts, one):
            memory = facts.memory_gib / facts.gpus
            note = f"memory {facts.memory_gib:g} -> {memory:g} GiB (multiplied twice)"
            facts = replace(facts, memory_gib=memory, correction=joined(facts.correction, note))
        answers.append(facts)
    return answers


def is_squared(facts: MachineFacts, one: float) -> bool:
    return facts.provider == "runpod" and facts.memory_gib >= facts.gpus**2 * one


def smallest_memory(machines: Iterable[MachineFacts]) -> dict[tuple[str, str], float]:
    memories: dict[tuple[str, str], float] = {}
    for facts in machines:
        key = (facts.provider, facts.gpu)
        memories[key] = min(facts.memory_gib, memories.get(key, facts.memory_gib))
    return memories
