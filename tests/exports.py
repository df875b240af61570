"""Exports for tests: runs to export, and the code of a model card run without Stoker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from stoker.recipe.resolve import resolve
from stoker.train.attempt.session import train
from tiny_runs import FLAGS, tiny_set

WITHOUT_STOKER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "stoker":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
try:
    import stoker
except ImportError:
    pass
else:
    raise SystemExit("stoker can be imported")
for block in sys.argv[1:]:
    exec(block, {})
"""


def tiny_run(root: Path, **flags: Any) -> Path:
    """A run of a second on a tiny set, `packed`, beside it."""
    data = tiny_set(root)
    given = FLAGS | {"epochs": 2} | flags
    assert train(data, resolve(None, given), root / "run") == "finished"
    return root / "run"


def code_blocks(card: str) -> list[str]:
    """The Python code of a model card."""
    return re.findall(r"^```python\n(.*?)^```", card, flags=re.MULTILINE | re.DOTALL)


def answers_without_stoker(out: Path, blocks: list[str]) -> list[str]:
    """What each block prints, in the folder of an export, where Stoker cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_STOKER, *blocks],
        cwd=out,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def config_of(out: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((out / "config.json").read_text())
    return config


def write_config(out: Path, config: Any) -> None:
    (out / "config.json").write_text(json.dumps(config))
