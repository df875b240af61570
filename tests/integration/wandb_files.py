"""Reads the files of W&B runs with W&B's own records; run by an interpreter that has it.

Prints the id of each run and the steps and values of each metric as JSON. The files are a log of
records in blocks of 32 kB, each with a header of checksum, length and kind (1 whole, 4 last part).
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER = 32768, 7


def records(data: bytes) -> Iterator[bytes]:
    at, part = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER])
        part += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):
            yield part
            part = b""


ids: list[str] = []
values: dict[str, list[tuple[int, float]]] = {}
for file in sorted(Path(sys.argv[1]).glob("wandb/*run-*/run-*.wandb")):
    for data in records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            ids.append(record.run.run_id)
        elif record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            for name, value in row.items():
                if name != "step" and not name.startswith("_"):
                    values.setdefault(name, []).append((row["step"], value))
print(json.dumps({"ids": ids, "values": values}))
