"""A pipe gets a line now and then; a terminal gets a bar."""

from __future__ import annotations

import pytest

from stoker.show import progress as shown
from stoker.show.progress import LiveBar, TimedLines, progress


@pytest.fixture
def passed_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still unless it is moved."""
    now = [100.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_a_line_now_and_then(
    passed_s: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = TimedLines()
    for done in range(100):
        passed_s[0] += 1.0
        lines.tell(done, 100, f"{done} of 100")
    lines.close()
    assert capsys.readouterr().out.splitlines() == ["30 of 100", "61 of 100", "92 of 100"]


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = LiveBar()
    bar.tell(5, 10, "5 of 10 images")
    bar.close()
    assert "5 of 10 images" in capsys.readouterr().out


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveBar), (False, TimedLines)])
def test_each_gets_its_own(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: type[TimedLines]
) -> None:
    monkeypatch.setattr(shown.sys.stdout, "isatty", lambda: terminal)
    made = progress()
    made.close()
    assert type(made) is kind
