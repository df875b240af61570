"""What is measured again, and what is not."""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_rerunfailures")
pytest_plugins = ("pytester",)
TESTS = """
from measured import held, measured

tries = []

@measured()
def test_missed_twice(tmp_path):
    assert not list(tmp_path.iterdir())
    (tmp_path / "used").touch()
    tries.append(tmp_path)
    held(len(tries) == 3, len(tries))
    assert len(set(tries)) == 3

@measured()
def test_missed_every_time():
    held(False, "too slow")

wrong = []

@measured()
def test_wrong():
    wrong.append(1)
    assert len(wrong) == 2
"""


def test_only_a_missed_limit_is_measured_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    found = pytester.runpytest("-p", "no:cacheprovider")
    found.assert_outcomes(passed=1, failed=2)
    assert found.parseoutcomes()["rerun"] == 4
