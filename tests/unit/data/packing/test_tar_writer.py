"""Shards are byte for byte what tarfile writes."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.data.packing.tar_writer import LARGEST, TarWriter, header
from stoker.errors import StokerError

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789._-", min_size=1, max_size=100)


@given(st.lists(st.tuples(names, st.binary(max_size=2000)), max_size=30))
def test_same_bytes_as_tarfile(members: list[tuple[str, bytes]]) -> None:
    theirs, ours = io.BytesIO(), io.BytesIO()
    begins = []
    with tarfile.open(fileobj=theirs, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            begins.append(tar.offset + tarfile.BLOCKSIZE)
            tar.addfile(info, io.BytesIO(data))
    writer = TarWriter(ours)
    assert [writer.add(name, data) for name, data in members] == begins
    writer.close()
    assert ours.getvalue() == theirs.getvalue()


@given(names, st.integers(0, LARGEST))
def test_same_header_for_any_size(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    assert header(name, size) == info.tobuf(tarfile.USTAR_FORMAT)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(StokerError, match="does not fit"):
        header("k" * 101, 1)
    with pytest.raises(StokerError, match="does not fit"):
        header("k", LARGEST + 1)
