"""Answers as rows of text: CSV or JSON lines, to a file or to standard output.

Invariants: a name is data. In CSV it is quoted and otherwise as it is, byte for byte, but for a
quote before what a spreadsheet takes for a formula. In JSON what is not ASCII is escaped, and a
byte that is not UTF-8 is the lone surrogate that Python's own names of files have. A terminal gets
no control characters. A file appears under its name complete or not at all; a device or a pipe is
written to.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from stoker.commit import publish, temporary
from stoker.errors import StokerError
from stoker.text import one_line, plain_cell, shown
from stoker.use.features import FEATURE_FILES, FeatureFile
from stoker.use.predict import NamedAnswers


class RowFormat(Protocol):
    """Makes text of answers."""

    def head(self) -> str:
        """What stands before the first row."""
        ...

    def rows(self, answers: NamedAnswers) -> str:
        """A row for each image."""
        ...


class CsvRows:
    """path, class, probability, class_2, probability_2, ..., error"""

    def __init__(self, classes: Sequence[str], top: int, *, terminal: bool = False) -> None:
        self._name = shown if terminal else str
        self._classes = [self._name(name) for name in classes]
        self._top = top

    def head(self) -> str:
        numbers = ["", *(f"_{rank}" for rank in range(2, self._top + 1))]
        columns = [f"{kind}{number}" for number in numbers for kind in ("class", "probability")]
        return text_of([["path", *columns, "error"]])

    def rows(self, answers: NamedAnswers) -> str:
        return text_of(self._fields(answers))

    def _fields(self, answers: NamedAnswers) -> Iterator[list[str]]:
        for name, error, numbers, probabilities in zip(
            answers.names,
            answers.errors,
            answers.classes.tolist(),
            answers.probabilities,
            strict=True,
        ):
            fields = [self._name(name)]
            if error is None:
                for number, probability in zip(numbers, probabilities, strict=True):
                    fields += [self._classes[number], str(probability)]
            else:
                fields += [""] * (2 * self._top)
            yield [*fields, error or ""]


def text_of(rows: Sequence[list[str]] | Iterator[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(plain_cell, row) for row in rows)
    return text.getvalue()


class JsonRows:
    """{"path": ..., "class": ..., "probability": ..., "top": [{"class": ..., "probability": ...}]},
    or {"path": ..., "error": ...}"""

    def __init__(self, classes: Sequence[str], top: int, *, terminal: bool = False) -> None:
        self._classes = classes

    def head(self) -> str:
        return ""

    def rows(self, answers: NamedAnswers) -> str:
        return "".join(
            f"{json.dumps(self._row(answers, number))}\n" for number in range(len(answers.names))
        )

    def _row(self, answers: NamedAnswers, number: int) -> dict[str, object]:
        if answers.errors[number] is not None:
            return {"path": answers.names[number], "error": answers.errors[number]}
        top = [
            {"class": self._classes[label], "probability": float(str(probability))}
            for label, probability in zip(
                answers.classes[number].tolist(), answers.probabilities[number], strict=True
            )
        ]
        return {"path": answers.names[number], **top[0], "top": top}


ROW_FORMATS: dict[str, type[CsvRows] | type[JsonRows]] = {"csv": CsvRows, "jsonl": JsonRows}


class RowWriter:
    """Writes rows to a file, or to standard output where `name` is empty; what comes before the
    rows with the first ones."""

    def __init__(
        self, file: IO[bytes], name: str, format: str, classes: Sequence[str], top: int
    ) -> None:
        self._file, self._name = file, name or "standard output"
        self._format = ROW_FORMATS[format](classes, top, terminal=file.isatty())
        self._began = False

    def write(self, answers: NamedAnswers) -> None:
        """Write a row for each image. Raises StokerError where that fails, BrokenPipeError where
        the reader is gone."""
        head = "" if self._began else self._format.head()
        self._began = True
        with writing(self._name):
            self._file.write(encoded(head + self._format.rows(answers)))
            self._file.flush()


class FeatureWriter:
    """Writes the features of answers to a file."""

    def __init__(self, name: str, file: FeatureFile) -> None:
        self._name, self._file = name, file

    def write(self, answers: NamedAnswers) -> None:
        """Write a row for each image. Raises StokerError where that fails."""
        assert answers.features is not None
        broken = np.array([error is not None for error in answers.errors])
        with writing(self._name):
            self._file.write(answers.names, answers.features, broken)

    @classmethod
    @contextmanager
    def open(cls, name: str) -> Iterator[FeatureWriter]:
        """A new file, complete when the block ends without an error."""
        path = Path(name)
        with complete_file(path) as file:
            features = FEATURE_FILES[path.suffix](file)
            try:
                yield cls(name, features)
            finally:
                with writing(name):
                    features.close()


def encoded(text: str) -> bytes:
    """UTF-8, with the bytes of names that are none as they are."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that no name of a file has
        return text.encode("utf-8", "backslashreplace")


@contextmanager
def complete_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that appears under its name when the block ends without an error. Raises
    StokerError where it cannot be written."""
    is_special = path.exists() and not path.is_file()
    target = path.resolve()  # a link stays, and what it leads to is replaced
    draft = path if is_special else temporary(target)
    file: IO[bytes] | None = None
    try:  # a stop request may come as soon as the file exists
        with writing(str(path)):
            file = draft.open("wb")
        yield file
        with writing(str(path)):
            file.close()
            if not is_special:
                publish(draft, target)
    except BaseException:
        with suppress(OSError):  # it was said already
            if file is not None:
                file.close()
        if not is_special:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        raise


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn an error of writing into a StokerError with the name of the file. A reader that has
    closed its pipe stays a BrokenPipeError: it has enough."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or one_line(str(error))
        raise StokerError(f"cannot write to {shown(name)}: {reason}") from error


@contextmanager
def row_file(path: str) -> Iterator[IO[bytes]]:
    """The file that rows go to: standard output where `path` is empty. Raises StokerError where it
    cannot be opened or completed."""
    if path:
        with complete_file(Path(path)) as file:
            yield file
    else:
        yield sys.stdout.buffer
