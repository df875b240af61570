"""Standard input, output and error of a command, which may be closed or full.

Invariants: all three are open from here on, so that no file of ours gets their numbers. A verb that
only prints fails where its output is lost; training and packing go on without output.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

from stoker.commit import json_bytes, write_bytes
from stoker.errors import FAILED, FINISHED, BadRequest, StokerError
from stoker.text import lost_output, say, shown


def open_streams() -> None:
    """Open the null device for each standard stream that is closed."""
    lost_output.clear()
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            if number == 1:
                lost_output.append(OSError(errno.EBADF, "it is closed"))
    # Python has None in the place of a stream that was closed when it started.
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def closing_code(code: int, *, needs_output: bool) -> int:
    """The exit code of a command that ends with `code`: FAILED where its output was lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # Python would try once more at its exit, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                lost_output.append(error)
    if not (lost_output and needs_output and code == FINISHED):
        return code
    say(f"stoker: cannot write to standard output: {lost_output[0].strerror}", stream=sys.stderr)
    return FAILED


def check_json(file: str) -> None:
    """Raise BadRequest where `--json FILE` cannot be written. Empty: no such file is wanted."""
    check_output("--json", file)


def check_output(flag: str, file: str) -> None:
    """Raise BadRequest where the file of a flag cannot be written. Empty: none is wanted."""
    path = Path(file)
    folder = path.resolve().parent
    if file and not folder.is_dir():
        raise BadRequest(f"{flag} {shown(file)}: its folder does not exist; make it first")
    if file and path.is_dir():
        raise BadRequest(f"{flag} {shown(file)} is a folder: name a file")
    if file and not os.access(path if path.exists() else folder, os.W_OK):
        raise BadRequest(f"{flag} {shown(file)} cannot be written: name a file elsewhere")


def write_figures(file: str, figures: Any) -> None:
    """Write figures to the FILE of `--json`. Raises StokerError where the disk is full."""
    write_output("--json", file, json_bytes(figures))


def write_output(flag: str, file: str, data: bytes) -> None:
    """Write the file of a flag. Raises StokerError where that fails."""
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe, which must not be replaced
        else:
            write_bytes(path, data)
    except OSError as error:
        raise StokerError(f"cannot write {flag} {shown(file)}: {error.strerror}") from error
