"""A pipe gets a line now and then; a terminal gets a bar."""

from __future__ import annotations

import pytest

from stoker.show import progress as module
from stoker.show.progress import LiveBar, TimedLines, progress


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    lines = TimedLines(clock=lambda: now_s)
    for done in range(100):
        now_s += 1.0
        lines.update(done, 100, f"{done} of 100")
    lines.close()
    assert capsys.readouterr().out.splitlines() == ["30 of 100", "61 of 100", "92 of 100"]


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = LiveBar()
    bar.update(5, 10, "5 of 10 images")
    bar.close()
    assert "5 of 10 images" in capsys.readouterr().out


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveBar), (False, TimedLines)])
def test_each_gets_its_own(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: type[TimedLines]
) -> None:
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: terminal)
    shown_as = progress()
    shown_as.close()
    assert type(shown_as) is kind
