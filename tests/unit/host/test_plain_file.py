"""Files that anyone could have put there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stoker.host.plain_file import NotPlain, head_and_tail, open_plain, read_given, read_plain


def test_a_small_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_plain(tmp_path / "x", 5) == b"12345"
    with pytest.raises(ValueError, match="too large"):
        read_plain(tmp_path / "x", 4)
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "y", 4)


def test_a_file_is_read_whole_where_its_length_says_nothing() -> None:
    """As in /proc, where each file has a length of 0, and where a file grows under the reader."""
    path = Path("/proc/self/limits")
    assert path.stat().st_size == 0
    assert read_plain(path) == path.read_bytes() != b""
    with pytest.raises(ValueError, match="too large"):
        read_plain(path, 10)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder"])
def test_what_would_wait_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        import socket

        socket.socket(socket.AF_UNIX).bind(str(path))
    with pytest.raises((ValueError, OSError)), open_plain(path):
        pass


@pytest.mark.parametrize(
    ("text", "most", "head", "tail"),
    [
        ("a\nb\nc\n", 100, "abc", ""),
        ("a\nb\nhalf", 100, "ab", ""),
        ("a\nb\nc\nd\n", 5, "ab", "cd"),
        ("aa\nbb\ncc\ndd\nee\n", 6, ["aa", "bb"], ["ee"]),
        ("", 100, "", ""),
        ("half", 100, "", ""),
        ("x" * 50, 10, "", ""),
    ],
)
def test_the_ends_of_a_long_file_are_whole_lines(
    tmp_path: Path, text: str, most: int, head: list[str] | str, tail: list[str] | str
) -> None:
    (tmp_path / "x").write_text(text)
    first, last = head_and_tail(tmp_path / "x", most)
    assert [line.decode() for line in first] == list(head)
    assert [line.decode() for line in last] == list(tail)


def test_the_ends_of_the_rest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a\nb\nc\nd\n")
    assert head_and_tail(tmp_path / "x", 100, begin=4) == ([b"c", b"d"], [])
    assert head_and_tail(tmp_path / "x", 100, begin=8) == ([], [])
    assert head_and_tail(tmp_path / "x", 100, begin=1 << 40) == ([], [])


def test_a_pipe_is_read_where_something_writes_to_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(NotPlain, match="nothing writes to"):
        read_given(tmp_path / "x", 10)
    reader = os.open(tmp_path / "x", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "x", os.O_WRONLY)
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(read_given(tmp_path / "x", 10)))
    thread.start()  # it waits, or comes when the bytes are there
    os.write(writer, b"12345")
    os.close(writer)
    thread.join(timeout=60)
    os.close(reader)
    assert results == [b"12345"]


def test_a_pipe_without_end_is_read_up_to_the_limit(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x" * 11)
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        read_given(Path(f"/dev/fd/{reader}"), 10)
    os.close(reader)
    os.close(writer)


def test_no_file_is_an_empty_one() -> None:
    assert read_given(Path(os.devnull), 5) == b""
    with pytest.raises(NotPlain, match="it is a device"):
        read_given(Path("/dev/zero"), 5)
