"""The process of a sink, and how a follower talks to it.

Messages are lines of JSON over pipes, one answer to each. Invariants: the follower never waits for
the sink: a thread writes and reads, one message at a time, and killing the process ends the wait.
What the libraries print is kept apart; the last lines are kept for an error message. The process
ends with its parent, whatever the cause.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import IO, Any

from stoker.history.metrics import MetricPoint
from stoker.host.signals import begin_helper
from stoker.track.curve import CurvePosition
from stoker.track.sink import KINDS, Refusal, SinkOptions, public_text

LONGEST_OUTPUT = 4096
Message = dict[str, Any]


class SinkProcess:
    """A sink in a process of its own. `command` is another program that speaks the same, for
    tests."""

    def __init__(self, sink: str, options: SinkOptions, command: Sequence[str] = ()) -> None:
        self._options = asdict(options) | {"sink": sink}
        own = [sys.executable, "-P", "-m", "stoker.track.process"]
        self._process = subprocess.Popen(
            command or own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(begin_helper, os.getpid()),  # the follower ends it in order
        )
        self._requests: queue.Queue[Message | None] = queue.Queue(1)
        self._answers: queue.Queue[Message] = queue.Queue(1)
        self._printed: deque[str] = deque(maxlen=5)
        self.is_busy = False
        """Whether an answer is awaited."""
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._talk, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def open(self) -> None:
        """Ask the sink to open. The answer has its position."""
        self._send({"do": "open", "options": self._options})

    def write(self, points: Sequence[MetricPoint], position: CurvePosition) -> None:
        rows = [[p.stream, p.step, p.time, dict(p.values)] for p in points]
        self._send({"do": "write", "points": rows, "position": position.data()})

    def back(self, step: int, attempt: int) -> None:
        self._send({"do": "back", "step": step, "attempt": attempt})

    def close(self, outcome: str) -> None:
        self._send({"do": "close", "outcome": outcome})

    def _send(self, message: Message) -> None:
        assert not self.is_busy
        self.is_busy = True
        self._requests.put(message)

    def answer(self, within_s: float) -> Message | None:
        """The answer to the last message; None where there is none within so many seconds. It has
        `error` where the sink failed or its process died."""
        try:
            message = self._answers.get(timeout=max(within_s, 0.0))
        except queue.Empty:
            return None
        self.is_busy = False
        return message

    def _talk(self) -> None:
        """Pass messages on, one by one, and their answers back."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None
        while (message := self._requests.get()) is not None:
            try:
                requests.write(json.dumps(message).encode() + b"\n")
                requests.flush()
                answer = json.loads(answers.readline())
                self._answers.put(answer if isinstance(answer, dict) else {"error": "no answer"})
            except (OSError, ValueError):
                self._answers.put({"error": self._death()})

    def _death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        if self._process.returncode is None:
            return "an answer that is none"
        self._threads[1].join(1)
        last = next(reversed(self._printed), "")
        code = self._process.returncode
        return f"its process ended with {code}" + (f": {public_text(last)}" if last else "")

    def _listen(self) -> None:
        """Keep the last lines that the process prints."""
        printed = self._process.stderr
        assert printed is not None
        while line := printed.readline(LONGEST_OUTPUT):
            if words := line.decode(errors="replace").strip():
                self._printed.append(words)

    def kill(self) -> None:
        """End the process and what it started, at once."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with suppress(queue.Full):
            self._requests.put_nowait(None)
        for thread in self._threads:
            thread.join(1)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream and not self._threads[0].is_alive():
                with suppress(OSError):
                    stream.close()


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Carry out messages until there are no more. An error ends it, after it was told."""
    sink: Any = None
    for line in requests:
        message = json.loads(line)
        try:
            if message["do"] == "open":
                sink = make(message["options"])
                answer = {"position": sink.open().data()}
            else:
                answer = carry_out(sink, message)
        except Exception as error:
            answer = {
                "error": public_text(str(error)) or type(error).__name__,
                "is_refusal": isinstance(error, Refusal),
            }
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
        if "error" in answer or message["do"] == "close":
            return


def make(options: Mapping[str, Any]) -> Any:
    """The sink of an `open` message."""
    kind = KINDS[options["sink"]]
    return kind.make(SinkOptions(**{k: v for k, v in options.items() if k != "sink"}))


def carry_out(sink: Any, message: Message) -> Message:
    """Do what a message says; the answer."""
    if message["do"] == "write":
        points = [MetricPoint(*row) for row in message["points"]]
        position = CurvePosition.of(message["position"])
        sink.write(points, position)
        return {"position": position.data()}
    if message["do"] == "back":
        return {"position": sink.back(message["step"], message["attempt"]).data()}
    sink.close(message["outcome"])
    return {}


def main() -> None:
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
