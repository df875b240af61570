"""One small job before the real ones: what the workers have, and what they lack.

Invariants: the job's function travels as a whole and imports nothing of Stoker's, so that it runs
on a worker that lacks everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.spark.failures import PACKAGES, missing_sentence
from stoker.text import one_line, shown

Answer = tuple[str, dict[str, str], dict[str, str]]
"""A worker's host, its versions of the packages, and why modules cannot be imported."""


def question(packages: dict[str, str]) -> Callable[[Any], Answer]:
    """A function that a worker can run without any module of Stoker. Spark sends a function inside
    a function as its code, and any other one by its name."""

    def answer(number: Any) -> Answer:
        import importlib
        import importlib.metadata
        import socket

        versions, missing = {}, {}
        for module, package in packages.items():
            try:
                importlib.import_module(module)
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = ""
            except Exception as error:  # also a library that such a module needs
                missing[module] = f"{type(error).__name__}: {error}"
        return socket.gethostname(), versions, missing

    return answer


@dataclass(frozen=True)
class WorkerFacts:
    """What the workers said."""

    hosts: list[str]
    other_versions: list[str]
    """Sentences about packages of another version than here."""


def facts_of(answers: list[Answer], master: str) -> WorkerFacts:
    """The facts in the answers. Raises BadRequest where a worker lacks a module."""
    missing = {module: reason for _, _, lacks in answers for module, reason in lacks.items()}
    if missing:
        broken = {m: r for m, r in missing.items() if not r.startswith("ModuleNotFoundError")}
        text = missing_sentence(sorted(missing), master)
        if broken:
            module, reason = next(iter(broken.items()))
            text += f" ({module}: {shown(one_line(reason))})"
        raise BadRequest(text)
    others = set()
    for host, versions, _ in answers:
        for package, version in versions.items():
            own = own_version(package)
            if version and own and version != own:
                others.add(
                    f"{shown(host)} has {package} {shown(version)}, this machine {own}: the bytes "
                    "of the images may differ from those of a pack here"
                )
    return WorkerFacts(sorted({host for host, _, _ in answers}), sorted(others))


def own_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def ask(context: Any, slots: int) -> list[Answer]:
    """Run the job on a SparkContext, with a task for each core."""
    numbers = context.parallelize(range(slots), slots)
    answers: list[Answer] = numbers.map(question(PACKAGES)).collect()
    return answers
