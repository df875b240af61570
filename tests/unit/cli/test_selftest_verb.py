"""stoker selftest: what is refused, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden import check_golden
from stoker.cli import main
from stoker.doctor.selftest import checks
from stoker.doctor.selftest.rows import FAILED, NOT_RUN, OK, Row
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.errors import FAILED as CODE_FAILED

MISTAKES = (
    ["--minutes", "nan"],
    ["--minutes", "-1"],
    ["--only", "sync"],
    ["--only", "machine,xyzzyxyzzy"],
    ["--json", "no/such/folder.json"],
    ["--quik"],
    ["photos"],
)


def test_mistakes_golden(capsys: pytest.CaptureFixture[str]) -> None:
    for words in MISTAKES:
        assert main(["selftest", *words]) == BAD_REQUEST, words
    printed = capsys.readouterr()
    assert not printed.out
    check_golden("selftest_mistakes", printed.err.splitlines())


@pytest.mark.exact
@pytest.mark.parametrize(
    ("verdicts", "code"),
    [((OK, NOT_RUN), FINISHED), ((OK, FAILED), CODE_FAILED), ((NOT_RUN,), FINISHED)],
)
def test_one_failure_is_the_exit_code(
    verdicts: tuple[str, ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def selftest(options: checks.SelftestOptions) -> Iterator[Row]:
        assert (options.minutes, options.quick, list(options.only)) == (2.5, True, ["nan", "save"])
        for verdict in verdicts:
            yield Row("nan", "1", "2", verdict, "", 0.5, {"figure": 1.5})

    monkeypatch.setattr(checks, "selftest", selftest)
    file = tmp_path / "figures.json"
    words = ["--minutes", "2.5", "--quick", "--only", "nan,save", "--json", str(file)]
    assert main(["selftest", *words]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[-1].split()[0] for line in lines[2 : 2 + len(verdicts)]] == [
        verdict.split()[0] for verdict in verdicts
    ]
    rows = json.loads(file.read_text())["rows"]
    assert [row["verdict"] for row in rows] == list(verdicts)
    assert rows[0]["figures"] == {"figure": 1.5}
