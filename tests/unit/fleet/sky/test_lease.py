"""When a lease ends a machine, on a clock that jumps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from golden import check_golden
from stoker.fleet.sky.lease import (
    ENDED,
    REPLACED,
    STALLED,
    TRIES,
    USED_UP,
    BoundedRead,
    LeaseTerms,
    MachineLease,
    Pulse,
    run_command,
)

HOUR = 3600.0


@dataclass
class JumpingClock:
    time: float = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


@dataclass
class SimulatedTraining:
    """Trains until a moment; stops when it is asked, unless it is deaf."""

    clock: JumpingClock
    ends_at: float = float("inf")
    deaf: bool = False
    shell_too: bool = False
    """Whether the shell hangs as well."""
    signals: list[str] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.clock.time < self.ends_at

    def ask_to_stop(self) -> None:
        self.signals.append("TERM")
        if not self.deaf:
            self.ends_at = self.clock.time + 1

    def kill_below(self) -> None:
        self.signals.append("KILL")
        if not self.shell_too:
            self.ends_at = self.clock.time

    def kill(self) -> None:
        self.signals.append("KILL all")
        self.ends_at = self.clock.time


@dataclass
class Provider:
    """Ends a machine after so many looks at its state, if it is asked in the right way."""

    polls: int = 3
    deaf_to: tuple[str, ...] = ()
    ending: bool = False
    calls: list[str] = field(default_factory=list)

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        self.calls.append(words[0])
        if words[0] != "state":
            self.ending |= words[0] not in self.deaf_to
            return (0, "") if words[0] not in self.deaf_to else (1, "busy")
        self.polls -= self.ending
        return 0, "terminated" if self.ending and self.polls < 0 else "running"


@dataclass
class Scene:
    """A lease, its training and its provider."""

    pulse: Callable[[float], Pulse | None] = lambda now: Pulse((now,), f"step {now:.0f}")
    hours: float = 2.0
    ends: tuple[str, ...] = ("end",)
    state: tuple[str, ...] = ("state",)
    is_newest: Callable[[float], bool] = lambda now: True
    provider: Provider = field(default_factory=Provider)

    def __post_init__(self) -> None:
        self.clock = JumpingClock()
        self.training = SimulatedTraining(self.clock)
        self.log: list[str] = []
        self.reasons: list[str] = []

    def run(self) -> str:
        terms = LeaseTerms(self.hours * HOUR, stall_s=HOUR, after_s=1200)
        lease = MachineLease(
            terms,
            self.training,
            lambda: self.pulse(self.clock.time),
            [[name] for name in self.ends],
            self.clock,
            self.log.append,
            state=self.state,
            is_newest=lambda: self.is_newest(self.clock.time),
            decided=self.reasons.append,
            call=self.provider,
        )
        why = lease.run()
        assert self.reasons == [why] or why == REPLACED
        return why


def test_training_that_ends_ends_the_machine() -> None:
    scene = Scene()
    scene.training.ends_at = 600.0
    assert scene.run() == ENDED
    assert scene.training.signals == []
    assert scene.provider.calls.count("end") == 1
    # SkyPilot had its twenty minutes first.
    assert scene.clock.time > 600 + 1200
    assert scene.log[-1] == "this machine is gone"


def test_training_that_hangs_is_stopped_and_the_machine_ends() -> None:
    scene = Scene(pulse=lambda now: Pulse((min(now, 1000.0),), "step 9"))
    assert scene.run() == STALLED
    assert scene.training.signals == ["TERM"]
    assert 1000 + HOUR < scene.clock.time < 1000 + HOUR + 2000


def test_training_that_is_deaf_is_killed_and_its_shell_too() -> None:
    scene = Scene(pulse=lambda now: None)
    scene.training.deaf = scene.training.shell_too = True
    assert scene.run() == STALLED
    assert scene.training.signals == ["TERM", "KILL", "KILL all"]


def test_long_steps_are_no_hang() -> None:
    """A run whose steps take five minutes may be silent for longer."""
    scene = Scene(pulse=lambda now: Pulse((now // 5000,), "step", allowed_s=9000), hours=4)
    assert scene.run() == USED_UP
    assert scene.clock.time > 4 * HOUR


def test_hours_that_are_used_up_end_the_machine_though_training_goes_on() -> None:
    scene = Scene(hours=0.5)
    assert scene.run() == USED_UP
    assert scene.training.signals == ["TERM"]


def test_a_command_that_fails_is_tried_again_then_the_next() -> None:
    scene = Scene(ends=("first", "second"), provider=Provider(deaf_to=("first",)))
    scene.training.ends_at = 1.0
    assert scene.run() == ENDED
    ends = [name for name in scene.provider.calls if name != "state"]
    assert ends == ["first"] * TRIES + ["second"]


def test_a_later_lease_takes_over_at_any_time() -> None:
    scene = Scene(is_newest=lambda now: now < 100)
    assert scene.run() == REPLACED
    waiting = Scene(is_newest=lambda now: now < 800)
    waiting.training.ends_at = 600.0
    assert waiting.run() == REPLACED
    assert scene.provider.calls == waiting.provider.calls == []


def test_without_a_state_command_it_never_gives_up() -> None:
    scene = Scene(state=(), ends=("a", "b"))
    scene.training.ends_at = 1.0

    class GoneError(Exception):
        pass

    def machine(words: Sequence[str]) -> tuple[int, str]:
        scene.provider.calls.append(words[0])
        if len(scene.provider.calls) == 20:
            raise GoneError  # the machine ends, and the lease with it
        return 1, "no"

    scene.provider.__class__ = type(
        "M", (Provider,), {"__call__": lambda self, words: machine(words)}
    )
    with pytest.raises(GoneError):
        scene.run()
    assert {*scene.provider.calls} == {"a", "b"}


def test_a_read_that_hangs_is_no_progress_and_holds_nothing_up() -> None:
    release, reads = threading.Event(), []

    def read() -> Pulse:
        reads.append(1)
        if len(reads) > 1:
            release.wait(30)
        return Pulse((len(reads),), "step")

    bounded = BoundedRead(read, seconds=0.05)
    first = bounded()
    assert first and first.mark == (1,)
    assert bounded() == bounded() == first
    assert len(reads) == 2  # one thread hangs, not one for each look
    release.set()


def test_a_read_that_fails_leaves_the_last_result() -> None:
    results: list[Pulse] = [Pulse((1,), "step 1")]
    bounded = BoundedRead(lambda: results.pop())
    first = bounded()
    assert first and bounded() == first


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["sh", "-c", "echo one; echo two >&2; exit 3"], 3, "two"),
        (["true"], 0, ""),
        (["/nowhere/at/all"], 127, "No such file"),
        (["printf", "\\033[2J"], 0, "\x1b[2J"),
    ],
)
def test_a_command_answers_whatever_happens(words: list[str], code: int, text: str) -> None:
    result = run_command(words)
    assert result[0] == code
    assert text in result[1]


def test_log_golden() -> None:
    scene = Scene(
        pulse=lambda now: Pulse((min(now, 1000.0),), "step 9"), provider=Provider(deaf_to=("x",))
    )
    scene.training.deaf = True
    scene.run()
    check_golden("sky_lease_log", scene.log)
