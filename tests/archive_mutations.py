"""Valid archives and tables, damaged by a seed."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import archives as ar
from mutations import WAYS, spliced

Make = Callable[[], bytes]


def written_tar(form: int) -> bytes:
    """As Python writes it, with a name that needs the form's own way for long names."""
    made = io.BytesIO()
    long = f"photos/cat/{'n' * 120}/{'ü' * 60}.jpg"
    with tarfile.open(fileobj=made, mode="w", format=form) as file:
        for name, data in [*ar.good(), (long, ar.image(2, 0))]:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1234.5
            file.addfile(member, io.BytesIO(data))
    return made.getvalue()


def parquet() -> bytes:
    names, images = zip(*ar.good(), strict=True)
    table = pa.table({"image": list(images), "label": [name.split("/")[1] for name in names]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=4)
    return sink.getvalue()


SOURCES: dict[str, list[Make]] = {
    "tar": [
        lambda: ar.tar(ar.good()),
        lambda: written_tar(tarfile.GNU_FORMAT),
        lambda: written_tar(tarfile.PAX_FORMAT),
        ar.sparse,
        ar.tar_of_tars,
        lambda: ar.with_pax(ar.record("size", "731"), ar.record("GNU.sparse.map", "0,1")),
    ],
    "tar.gz": [lambda: gzip.compress(written_tar(tarfile.PAX_FORMAT), mtime=0)],
    "tar.bz2": [lambda: bz2.compress(ar.tar(ar.good()))],
    "tar.xz": [lambda: lzma.compress(ar.tar(ar.good()))],
    "zip": [lambda: ar.zipped(ar.good()), ar.streamed_zip, ar.zip64],
    "parquet": [parquet],
}


@functools.cache
def valid(suffix: str, way: int) -> bytes:
    return SOURCES[suffix][way]()


def headers_mended(data: bytes) -> bytes:
    """A tar with the checksums of its headers made right, so that damage gets past them."""
    blocks = [data[at : at + ar.BLOCK] for at in range(0, len(data), ar.BLOCK)]
    return b"".join(
        ar.summed(block) if block[257:262] == b"ustar" and len(block) == ar.BLOCK else block
        for block in blocks
    )


def mutated_archive(seed: int) -> tuple[str, str, bytes]:
    """Suffix, the way it was damaged, and the archive."""
    chance = np.random.default_rng([seed, 777])
    suffix = str(chance.choice(["tar", "tar", "zip", "zip", "parquet", *SOURCES]))
    data = valid(suffix, int(chance.integers(len(SOURCES[suffix]))))
    way = WAYS[int(chance.integers(len(WAYS)))]
    if suffix == "tar" and way is not spliced and chance.random() < 0.6:
        # Damage in a header, which is where a reader can be led astray.
        headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
        at = headers[int(chance.integers(len(headers)))]
        return (
            suffix,
            way.__name__,
            headers_mended(data[:at] + way(data[at : at + 512], chance) + data[at + 512 :]),
        )
    return suffix, way.__name__, way(data, chance)
