"""A session on a Spark cluster.

Invariants: pyspark is imported here alone, in a thread that is not the main one: it would take over
Ctrl-C. Nothing listens but what Spark needs to reach its workers: its web page is off. Java's
output goes to a file. A session is closed within seconds, whatever Java does, and Java has ended
then; where it was still starting, it ends with this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from stoker.errors import StokerError
from stoker.fleet.sky.wheel import wheel_bytes
from stoker.fleet.spark import mapping
from stoker.fleet.spark.check import ask, facts_of
from stoker.fleet.spark.failures import sentence_of
from stoker.fleet.spark.master import is_local, require_answer
from stoker.host.signals import delayed_signals
from stoker.text import one_line, plural, shown

Result = TypeVar("Result")

OWN_SETTINGS = "spark.stoker."
"""Settings of Stoker's own, given as Spark's are."""
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.app.name": "stoker",
}
STOP_S = 5.0
"""Seconds that Spark has to end by itself."""
ARCHIVE = "stoker-of-the-driver.zip"
"""The wheel under a name that Spark takes for an archive of modules."""


class SparkCluster:
    """A session with a master, to be closed at the end of a `with`. It begins with the first use of
    `tasks`, which raises StokerError where it cannot, and BadRequest where workers lack a package.
    """

    def __init__(
        self, master: str, settings: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self.master, self.settings, self._say = master, dict(settings), say
        self._context: Any = None
        self._gateway: Any = None
        self._java: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._waits = self._is_checked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def tasks(self) -> mapping.TaskMapping:
        """How tasks are mapped over the workers."""
        if not self._is_checked:
            require_answer(self.master)
            self._folder = tempfile.TemporaryDirectory(prefix="stoker-spark-")
            wheel = Path(self._folder.name) / ARCHIVE
            wheel.write_bytes(wheel_bytes())
            with warnings.catch_warnings(action="ignore"):  # about versions of pandas
                aside(lambda: self._begin(wheel))
                self._check_workers()
            self._is_checked = True
        return self._mapping()

    def _mapping(self) -> mapping.TaskMapping:
        return mapping.TaskMapping(self._context, self.master, self._explain_silence)

    def _begin(self, wheel: Path) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        try:
            conf = SparkConf(loadDefaults=False).setMaster(self.master)
            for name, value in {**DEFAULTS, **self.settings}.items():
                conf.set(name, value)
            with self._log().open("wb") as log, delayed_signals():
                options = {"stdout": log, "stderr": log}
                self._gateway = launch_gateway(conf, popen_kwargs=options)
            self._java = self._gateway.proc
            self._context = SparkContext(conf=conf, gateway=self._gateway)
            self._context.pythonExec = self.python()
            paths = list(sys.path)
            self._context.addPyFile(str(wheel))
            sys.path[:] = paths  # here the modules come from where they came from before
        except Exception as error:
            last = self._last_words() or shown(one_line(str(error)))
            raise StokerError(f"no Spark session with {self.master}: {last}") from error

    def python(self) -> str:
        """The Python of the workers. Without a setting, those of this machine run its own."""
        named = self.settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        return named or (sys.executable if is_local(self.master) else "python3")

    def _log(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "java.txt"

    def _last_words(self) -> str:
        """The last line of Java's output that tells an error."""
        with suppress(OSError):
            lines = self._log().read_text(errors="replace").splitlines()
            errors = [line for line in lines if "Exception" in line or "ERROR" in line]
            return shown(one_line(errors[-1])) if errors else ""
        return ""

    def _check_workers(self) -> None:
        slots = self._mapping().slots()
        try:
            answers = aside(lambda: ask(self._context, slots), self._explain_silence)
        except Exception as error:
            raise StokerError(sentence_of(error, self.master)) from error
        facts = facts_of(answers, self.master)
        hosts = ", ".join(map(shown, facts.hosts[:5])) + (", ..." if len(facts.hosts) > 5 else "")
        cores = plural(self._mapping().slots(), "core")
        self._say(f"Spark at {self.master}: {cores} ({hosts})")
        for line in facts.other_versions:
            self._say(line)

    def _explain_silence(self) -> None:
        """Say once that no worker is there."""
        if self._waits or is_local(self.master):
            return
        with suppress(Exception):  # it is a note, and Java may be ending
            # The driver itself is counted.
            if self._context._jsc.sc().getExecutorMemoryStatus().size() <= 1:
                self._waits = True
                self._say(
                    f"no worker of {self.master} has given this session cores and memory yet: "
                    "waiting for one; its web page shows what is taken, and --spark-conf "
                    "spark.executor.memory=512m asks for less"
                )

    def close(self) -> None:
        """End the session and Java, within seconds."""
        context, self._context, self._is_checked = self._context, None, False
        if context is not None:
            with suppress(Exception):
                aside(context.stop, within_s=STOP_S)
        self._end_java()
        if self._folder:
            with suppress(OSError):
                self._folder.cleanup()

    def _end_java(self) -> None:
        java, self._java = self._java, None
        if java is None:
            return
        from pyspark import SparkContext

        if java.stdin:
            with suppress(OSError):
                java.stdin.close()  # at which it ends by itself
        try:
            java.wait(STOP_S)
        except subprocess.TimeoutExpired:
            java.kill()
            java.wait()
        with suppress(Exception):
            self._gateway.shutdown()
        # Another session in this process starts its own Java.
        SparkContext._gateway = SparkContext._jvm = None


def aside(
    call: Callable[[], Result],
    on_silence: Callable[[], None] = lambda: None,
    within_s: float | None = None,
) -> Result:
    """The result of a call in a thread of its own, for which a stop signal need not wait. Raises
    what it raises, and TimeoutError."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="stoker-spark-call", daemon=True).start()
    while within_s is None:
        try:
            return future.result(mapping.LOOK_S)
        except TimeoutError:
            if future.done():
                raise
            on_silence()
    return future.result(within_s)
