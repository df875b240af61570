"""The rows of the shards of a large split in a folder: read when they are asked for."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.data.index.description import Damaged
from stoker.data.index.shard_table import ShardTable
from stoker.errors import StokerError
from stoker.host.plain_file import NotPlain, open_plain


class FolderRows:
    """Files in a folder of this machine: RowFiles."""

    threads = 1

    def __init__(self, folder: Path, table: ShardTable) -> None:
        self._folder, self._table = folder, table

    def place(self, number: int) -> str:
        return str(self._folder / self._table.rows_file(number).name)

    def read(self, number: int) -> bytes:
        path, limit = Path(self.place(number)), self._table.rows_file(number).bytes
        try:
            with open_plain(path) as file:
                if os.fstat(file.fileno()).st_size != limit:
                    raise Damaged(path, "its size is not the one in shards.parquet")
                return file.read(limit + 1)
        except NotPlain as error:
            raise Damaged(path, "it is not a plain file") from error
        except OSError as error:
            raise StokerError(f"cannot read {path}: {error.strerror or error}") from error

    def close(self) -> None:
        pass
