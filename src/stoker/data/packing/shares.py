"""A pack that many machines share: each writes some of the shards, and one finishes the set.

Invariants: the shards of a share follow from the request alone, whichever machine writes them, and
a shard that is committed is not written again. While shares are written, no other pack changes the
target. The set is finished by a plain `pack`, which finds every shard committed: the bytes are
those of a pack on one machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from os import PathLike

from stoker.commit import sha256_json
from stoker.data.images.encode import Storage
from stoker.data.packing.memory import packing_workers
from stoker.data.packing.options import PackOptions
from stoker.data.packing.pack import PackJob, already_packed, hex_path
from stoker.data.packing.shard import (
    Files,
    LocalProcesses,
    OnReport,
    ShardTask,
    write_shards,
)
from stoker.data.packing.source import FileSource, open_source
from stoker.data.packing.target.places import target_of
from stoker.data.seal import WALK_CACHE
from stoker.errors import BadRequest, StokerError
from stoker.host.limits import usable_cores, usable_memory
from stoker.text import shown


@dataclass(frozen=True)
class SharedPack:
    """A pack of files whose shards can be written one by one, anywhere."""

    source: str
    job: PackJob

    @classmethod
    def of(
        cls, source: str, out: str | PathLike[str], storage: Storage, options: PackOptions
    ) -> SharedPack:
        """Raises BadRequest where the storage or the target is refused."""
        storage.check()
        cores = options.workers or usable_cores()
        workers = packing_workers(options.max_ram, usable_memory(), cores)
        return cls(source, PackJob(target_of(out), storage, options, LocalProcesses(workers)))

    def files(self) -> FileSource:
        """Raises BadRequest for a source that is read from its beginning to its end."""
        if self.source == "-":
            raise BadRequest("standard input can only be packed by the command that reads it")
        files = open_source(self.source, self.job.target.work / WALK_CACHE, self.job.options)
        if not isinstance(files, FileSource):
            raise BadRequest(
                f"{shown(self.source)} is read from its beginning to its end, by one machine: pack "
                "it with 'stoker launch slurm -- pack', or unpack it into a folder first"
            )
        return files

    def tasks(self, files: FileSource) -> Iterator[ShardTask]:
        return self.job.plan(files.listing, lambda paths: Files(files.root, tuple(paths)))

    def prepare(self) -> tuple[str, int]:
        """Claim the target. Returns the hash of the request, and how many shards it has. Raises
        BadRequest where the source or the target is refused."""
        files = self.files()
        digests = [task.digest() for task in self.tasks(files)]
        request = sha256_json([digests, files.listing.classes])
        target = self.job.target
        with target.held():
            if not already_packed(target, request, self.job.own_listing(files)):
                target.claim(hex_path(files.root), request)
            files.remember()
        return request, len(digests)

    def write(self, request: str, share: int, shares: int, on_report: OnReport) -> None:
        """Write the shards of a share. Raises StokerError where the source has changed since the
        request."""
        files = self.files()
        digests = [task.digest() for task in self.tasks(files)]
        if sha256_json([digests, files.listing.classes]) != request:
            raise StokerError(
                f"the files of {shown(self.source)} have changed since the pack was planned: give "
                "the same command again"
            )
        with self.job.target.held(shared=True):
            if self.job.target.is_packed:
                return  # another worker wrote this share, and the set was finished
            mine = islice(self.tasks(files), share, None, shares)
            write_shards(self.job.target.planned(mine), self.job.place, on_report)
