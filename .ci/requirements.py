"""Print the packages that Stoker needs, each with its version and its SHA-256 hashes.

    python .ci/requirements.py [EXTRA ...] > requirements.txt
    pip install --require-hashes -r requirements.txt
    pip install --no-deps --no-build-isolation .

pip chooses the versions, within constraints.txt, for this platform and this version of Python: the
file is made where it is used, and not kept here. It has names, versions and hashes, no addresses.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """What Stoker names in pyproject.toml: to run, to be built, and for these extras. Raises
    SystemExit for an extra that there is not."""
    optional = project["project"]["optional-dependencies"]
    if unknown := [extra for extra in extras if extra not in optional]:
        raise SystemExit(f"no extra called {', '.join(unknown)}: there are {', '.join(optional)}")
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    return needed + [name for extra in extras for name in optional[extra]]


def resolve(needed: list[str]) -> dict[str, Any]:
    """pip's own report of what it would install into an empty environment. Wheels only: the hash of
    a source says nothing about what its build runs. Raises CalledProcessError."""
    options = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    command = [sys.executable, "-P", "-m", "pip", "install", *options, *constraints]
    done = subprocess.run(
        [*command, "--report", "-", *needed], stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def lines(report: dict[str, Any]) -> list[str]:
    """A line for each package of a report, sorted by name. Raises SystemExit if one has no hash."""
    result = []
    for package in report["install"]:
        name, version = package["metadata"]["name"].lower(), package["metadata"]["version"]
        digest = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise SystemExit(f"the package index gives no SHA-256 hash for {name} {version}")
        result.append(f"{name}=={version} --hash=sha256:{digest}")
    return sorted(result)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    try:
        report = resolve(requirements(project, sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # pip has said why
    print("\n".join(lines(report)))
