"""Run pytest; run what failed once more, alone, where a busy machine may be to blame.

    python .ci/stage.py FLAKY-FILE PYTEST-ARGUMENTS...

Exit code 0 where everything passed, then or at the second try. The names of tests that needed the
second try are appended to FLAKY-FILE. A test that asserts something exact is not tried again (see
tests/conftest.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_RETRIED = 10
"""More failures than this are no accident."""


def pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments]).returncode


def main(flaky: Path, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        failures = Path(folder) / "failures.json"
        code = pytest(*arguments, "--failures", str(failures))
        if code != 1 or not failures.exists():
            return code
        failed: dict[str, bool] = json.loads(failures.read_text())
    if not failed or not all(failed.values()) or len(failed) > MOST_RETRIED:
        return code
    print(f"\n-- {len(failed)} failed: once more, alone", flush=True)
    options = [word for word in arguments if word.startswith(("--whole", "-q", "--hypothesis"))]
    if pytest(*options, *failed) != 0:
        return code
    with flaky.open("a") as file:
        file.writelines(f"{name}\n" for name in failed)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
