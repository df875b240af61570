"""What an engine adds to an installation: packages and bytes that Stoker does not need itself."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

LIST = """
import json
from importlib.metadata import distributions
def size(file):
    path = file.locate()
    return path.stat().st_size if path.is_file() else 0
print(json.dumps({each.name: [each.version, sum(map(size, each.files or ()))]
                  for each in distributions()}))
"""
TOOLS = {"pip", "setuptools", "wheel"}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_by(package: str, names: set[str] | None = None) -> set[str]:
    """A package and all that it requires, without extras, as far as they are installed here."""
    names = set() if names is None else names
    try:
        requirements = distribution(package).requires or []
    except PackageNotFoundError:
        return names
    names.add(plain(package))
    for text in requirements:
        match = re.match(r"[\w.-]+", text)
        if match and "extra ==" not in text and plain(match[0]) not in names:
            needed_by(match[0], names)
    return names


def added(python: Path) -> dict[str, tuple[str, int]]:
    """Version and bytes of each package of an engine's environment that Stoker does not need."""
    printed = subprocess.run([python, "-c", LIST], check=True, capture_output=True, text=True)
    ours = needed_by("stoker") | TOOLS
    packages = json.loads(printed.stdout).items()
    return {
        plain(name): (fields[0], fields[1]) for name, fields in packages if plain(name) not in ours
    }
