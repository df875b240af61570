"""TensorBoard: event files in a folder, written with the `tensorboard` package alone.

Event files can only be added to, and TensorBoard has two readers, which forget lost values in two
ways. The Python reader forgets every value from the step of a SessionLog START event on. The fast
data server ignores that event; it forgets the values of one tag when the tag gets a value of the
same or a smaller step. `back` serves both: it begins a new file with a START event, and from its
step on all values are written again, among them the last one of each tag that still holds.

Invariant: a new process begins a new file, whose name sorts after all others.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import IO, Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from stoker.history.metrics import MetricPoint
from stoker.track.curve import CurvePosition
from stoker.track.folder import SinkFolder
from stoker.track.sink import SinkOptions

VERSION = "brain.Event:2"
_NAME = re.compile(r"events\.out\.tfevents\.(\d{10,})\.stoker")


class EventFiles:
    """The sink `tensorboard`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._folder = SinkFolder(options.out, options.run_id)
        self._position = CurvePosition()
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def open(self) -> CurvePosition:
        position = self._folder.open()
        names = self._names()
        if all(self._folder.has_all(name) for name in names) and names:
            self._position = position
        elif names:  # a killed tracker wrote more than it recorded: write all of it again
            self.back(0, 0)
        return self._position

    def _names(self) -> list[str]:
        return sorted(p.name for p in self._folder.path.iterdir() if _NAME.fullmatch(p.name))

    def _begin(self, purge_step: int | None = None) -> None:
        """Begin a new file, with the parameters if the curve begins there."""
        if self._file:
            self._file.close()
        names = [_NAME.fullmatch(name) for name in self._names()]
        latest = max((int(match[1]) for match in names if match), default=0)
        number = max(int(time.time()), latest + 1)
        path = self._folder.path / f"events.out.tfevents.{number:010d}.stoker"
        self._file = path.open("xb")
        self._writer = RecordWriter(self._file)
        now = time.time()
        self._add(Event(wall_time=now, file_version=VERSION))
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=now, step=purge_step, session_log=start))
        if not self._position.steps:
            self._add(Event(wall_time=now, step=0, summary=Summary(value=[self._table()])))

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def _table(self) -> Any:
        """The parameters as a table of the text plugin."""
        facts = {**self._options.parameters, **self._options.tags}
        rows = [f"| {cell(name)} | {cell(value)} |" for name, value in facts.items()]
        table = "\n".join(["| name | value |", "|---|---|", *rows]).encode("utf-8", "replace")
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        return Summary.Value(
            tag="run/parameters",
            metadata=SummaryMetadata(plugin_data=plugin),
            tensor=TensorProto(dtype=DT_STRING, string_val=[table]),
        )

    def write(self, points: Sequence[MetricPoint], position: CurvePosition) -> None:
        if self._file is None:
            self._begin()
        for point in points:
            values = [Summary.Value(tag=n, simple_value=v) for n, v in point.values.items()]
            at = point.time or time.time()
            self._add(Event(wall_time=at, step=point.step, summary=Summary(value=values)))
        self._position = position
        self._save()

    def _save(self) -> None:
        assert self._file is not None
        self._file.flush()
        self._folder.sizes = {n: (self._folder.path / n).stat().st_size for n in self._names()}
        self._folder.save(self._position)

    def back(self, step: int, attempt: int) -> CurvePosition:
        before = self._position.before(step, attempt)
        self._position = before if step > 0 else CurvePosition(attempt)
        self._begin(step)
        self._save()
        return self._position

    def close(self, outcome: str) -> None:
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        self._folder.close()


SINK = EventFiles


def cell(text: str) -> str:
    """Text in a cell of a Markdown table, with nothing in it that is markup."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~-])", r"\\\1", text)
