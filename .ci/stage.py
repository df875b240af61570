"""Run pytest; run what failed once more, alone, where a busy machine may be to blame.

    python .ci/stage.py RESULTS PYTEST-ARGUMENTS...    one stage
    python .ci/stage.py RESULTS                        the closing lines over all stages

Exit code 0 where everything passed, then or at the second try. Each stage appends a line of JSON to
RESULTS: how many tests passed, failed or were skipped, and which needed the second try. A test that
asserts something exact is not tried again (see tests/conftest.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

MOST_RETRIED = 10
"""More failures than this are no accident."""


@dataclass
class Results:
    """What became of the tests of a stage."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    flaky: list[str] = field(default_factory=list)


def pytest(*arguments: str) -> tuple[int, Results, dict[str, bool]]:
    """Pytest's exit code, what became of the tests, and which of those that failed may be tried
    again."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", *arguments, "--outcomes", str(outcomes)]
        code = subprocess.run(command).returncode
        counts = json.loads(outcomes.read_text()) if outcomes.exists() else {"failed": {}}
    failures = counts.pop("failed")
    # Also a file that cannot be imported, or a pytest that was killed, counts as a failed test.
    return code, Results(**counts, failed=max(len(failures), int(code != 0))), failures


def run_stage(arguments: list[str]) -> tuple[int, Results]:
    """The exit code of a stage, and what became of its tests."""
    code, results, failures = pytest(*arguments)
    if code != 1 or not failures or not all(failures.values()) or len(failures) > MOST_RETRIED:
        return code, results
    print(f"\n-- {len(failures)} failed: once more, alone", flush=True)
    options = [word for word in arguments if word.startswith(("--whole", "-q", "--hypothesis"))]
    _, second, _ = pytest(*options, "--again", *failures)
    if second.passed < len(failures):
        return code, results
    passed = results.passed + second.passed
    return 0, Results(passed=passed, skipped=results.skipped, flaky=[*failures])


def closing_lines(path: Path) -> list[str]:
    """The tests that needed a second try, and the count of all stages, which comes last."""
    stages = [Results(**json.loads(line)) for line in path.read_text().splitlines()]
    names = [name for stage in stages for name in stage.flaky]
    passed, failed, skipped = (
        sum(getattr(stage, kind) for stage in stages) for kind in ("passed", "failed", "skipped")
    )
    return [
        *(f"FLAKY (passed alone, at the second try): {name}" for name in names),
        f"{passed} passed, {failed} failed, {skipped} skipped",
    ]


def main(path: Path, arguments: list[str]) -> int:
    if not arguments:
        print("\n".join(closing_lines(path)))
        return 0
    code, results = run_stage(arguments)
    with path.open("a") as file:
        file.write(json.dumps(asdict(results)) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
