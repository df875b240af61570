"""A file of unknown origin as lines of text, in bounded memory, and the headings above a log.

A file may be a log, a page of notes with logs in it, or no text at all. Any byte is allowed: what
is not text becomes a replacement character, an endless line is cut, and colour codes are removed.
A title keeps printable characters only, so that it cannot control a terminal.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import IO

from stoker.measure.logs.line import MOST_CHARACTERS

CHUNK_BYTES = 1 << 16
FENCE = ("```", "~~~")
LONGEST_SENTENCE = 80

_ENDS = re.compile(r"[\r\n]")
_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,24}[A-Za-z]")
_HEADING = re.compile(
    r"#{1,6}[ \t]+(?P<hash>\S.{0,200})|(?P<stars>\*{1,3}|_{2})(?P<text>[^\s*_].{0,200})"
)
_SENTENCE = re.compile(r"[A-Za-z=][^:/\\]{0,40} ")
_COMMAND = re.compile(r"\S{0,80}[$#>%] |.{0,80}\b(?:python3?|torchrun|srun|bash) ")


def lines(file: IO[bytes], start: bytes = b"") -> Iterator[str]:
    """The lines of a file without ends and colours, whose first bytes may have been read before.
    `\\r` ends a line too, as in progress bars."""
    start += file.read(CHUNK_BYTES)
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")("replace")
    chunk, tail = start, ""
    while chunk:
        *whole, tail = _ENDS.split(tail + decoder.decode(chunk))
        yield from map(_plain, whole)
        tail = tail[:MOST_CHARACTERS]
        chunk = file.read(CHUNK_BYTES)
    tail += decoder.decode(b"", final=True)
    if tail:
        yield _plain(tail)


def _plain(line: str) -> str:
    line = line[:MOST_CHARACTERS]
    return _COLOURS.sub("", line) if "\x1b" in line else line


class Headings:
    """The last heading of a text so far, and the last sentence below it."""

    def __init__(self) -> None:
        self._heading = self._sentence = ""
        self._fenced = False

    def add(self, line: str) -> bool:
        """Add a line that is no log line; True where it begins or ends quoted text."""
        text = line.strip()
        if text.startswith(FENCE):
            self._fenced = not self._fenced
            return True
        if self._fenced or not text:
            return False
        heading = _HEADING.fullmatch(text)
        if heading and (heading["hash"] or text.endswith(heading["stars"])):
            self._heading = _printable(heading["hash"] or text.strip("*_"))
            self._sentence = ""
        elif len(text) <= LONGEST_SENTENCE and _SENTENCE.match(text) and not _COMMAND.match(text):
            self._sentence = _printable(text)
        return False

    @property
    def title(self) -> str:
        """Heading and sentence in one line; empty where there are none."""
        return ", ".join(filter(None, (self._heading, self._sentence)))

    def used(self) -> None:
        """Forget the sentence: it is the title of one log, a heading that of all that follow."""
        self._sentence = ""


def _printable(text: str) -> str:
    """Text that is safe to print: anybody may have written the file."""
    return "".join(c for c in text if c.isprintable()).strip().rstrip(":")[:LONGEST_SENTENCE]
