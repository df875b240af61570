"""The living screen, driven by keys in a terminal that is only in memory."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("textual")

from textual.pilot import Pilot

from made_runs import RunMaker
from stoker.show.watch import app as apps
from stoker.show.watch.app import WatchApp, WatchScreen
from stoker.show.watch.watcher import RunWatcher

Act = Callable[[WatchApp, Pilot[None]], Awaitable[None]]
PATIENCE_S = 20.0


def drive(app: WatchApp, act: Act, size: tuple[int, int] = (80, 24)) -> None:
    """Run the app and act on it, once its first look has ended."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.looks > 0 and bool(app._runs))
            await act(app, pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await pilot.pause(0.01)


def screen(app: WatchApp) -> str:
    """What the terminal shows."""
    widget = app.query_one(WatchScreen)
    lines = [widget.render_line(y) for y in range(app.size.height)]
    return "\n".join(line.text.rstrip() for line in lines)


def made(path: Path, until_step: int = 60, outcome: str | None = None) -> RunMaker:
    return RunMaker(path, steps=100).attempt(0, until_step, outcome)


def watching(maker: RunMaker, *more: RunMaker) -> WatchApp:
    paths = [maker.run.path, *(other.run.path for other in more)]
    return WatchApp(paths, 0.5, clock=lambda: maker.clock.now + 5)


def test_one_run_and_its_keys(tmp_path: Path) -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert "step 60 of 100" in screen(app) and "running  attempt 1" in screen(app)
        assert screen(app).splitlines()[-1] == "q quit  x over step  ? help"
        for axis in ("epoch", "time", "step"):
            await pilot.press("x")
            assert f"x over {axis}" in screen(app)
        await pilot.press("question_mark")
        assert "choose the next" in screen(app)
        await pilot.press("escape")
        assert "step 60 of 100" in screen(app)
        await pilot.press("tab", "enter", "9", "down")
        assert "step 60 of 100" in screen(app)
        await pilot.press("q")
        assert app._exit

    drive(watching(made(tmp_path / "run")), act)


def test_several_runs_are_opened_and_left(tmp_path: Path) -> None:
    makers = [made(tmp_path / name, until_step=10 * n) for n, name in enumerate("abc", 5)]

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(app._runs) == 3)
        assert screen(app).count("running") == 3 and "▶1 " in screen(app)
        await pilot.press("tab")
        assert "▶2 " in screen(app)
        await pilot.press("left", "left")
        assert "▶3 " in screen(app)
        await pilot.press("enter")
        assert "step 70 of 100" in screen(app) and "run 3 of 3" in screen(app)
        await pilot.press("right")
        assert "step 50 of 100" in screen(app)
        await pilot.press("escape")
        assert "▶1 " in screen(app)
        await pilot.press("2")
        assert "step 60 of 100" in screen(app)

    drive(watching(*makers), act)


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (20, 5)])
def test_fills_the_terminal_and_follows_its_size(tmp_path: Path, size: tuple[int, int]) -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        widget = app.query_one(WatchScreen)
        for width, height in (size, (100, 30)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            assert widget.size.width == width
            lines = widget._lines
            assert len(lines) == height
            assert max(line.cell_len for line in lines) <= width

    drive(watching(made(tmp_path / "run")), act, size)


def test_a_new_attempt_appears(tmp_path: Path) -> None:
    maker = made(tmp_path / "run")

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        maker.attempt(40, 80, None)
        await until(pilot, lambda: "attempt 2" in screen(app))
        assert "step 80 of 100" in screen(app)

    drive(watching(maker), act)


def test_a_run_is_removed(tmp_path: Path) -> None:
    maker = made(tmp_path / "run")

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        shutil.rmtree(tmp_path / "run")
        await until(pilot, lambda: "was removed or moved" in screen(app).replace("\n", ""))
        assert "step 60 of 100" in screen(app)

    drive(watching(maker), act, (160, 50))


def test_a_run_begins_while_it_is_waited_for(tmp_path: Path) -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert "waiting for" in screen(app)
        made(tmp_path / "run", outcome="finished")
        await until(pilot, lambda: "finished  attempt 1" in screen(app))

    drive(WatchApp([tmp_path / "run"], 0.5), act)


def test_a_slow_disk_holds_up_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, looks = threading.Event(), list[int]()
    real = RunWatcher.look

    def slow(self: RunWatcher, now: float | None = None) -> object:
        looks.append(1)
        answer.wait(PATIENCE_S)
        return real(self, now)

    monkeypatch.setattr(RunWatcher, "look", slow)
    app = WatchApp([made(tmp_path / "run").run.path], 0.5)
    monkeypatch.setattr(apps, "TICK_S", 0.01)

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(looks) == 1)
            assert "reading" in screen(app)
            await pilot.press("question_mark")
            assert "choose the next" in screen(app)
            for _ in range(20):
                app.look_if_due()
            assert len(looks) == 1
            answer.set()
            await until(pilot, lambda: app.looks == 1)

    asyncio.run(run())


def test_ended_runs_are_looked_at_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [100.0]
    monkeypatch.setattr(apps, "monotonic", lambda: seconds[0])

    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert app._thread is not None
        app._thread.join()
        looks = app.looks
        seconds[0] += 5
        app.look_if_due()
        assert not app._thread.is_alive() and app.looks == looks
        seconds[0] += 6
        app.look_if_due()
        await until(pilot, lambda: app.looks == looks + 1)

    drive(watching(made(tmp_path / "run", 100, "finished")), act)
