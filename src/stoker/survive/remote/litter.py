"""Objects of a run that no head names any more, or none will.

Invariant: an object is deleted only where no process can make a head name it: it was not in the
head when this process took the lease, or this process wrote it or took it out of the head, and the
newest head does not name it. So a process that has lost its lease and does not know it yet deletes
nothing of the next one.
"""

from __future__ import annotations

from stoker.stores.commit_folder import delete_folder
from stoker.stores.objects import Objects
from stoker.survive.manifest import MARKER
from stoker.survive.remote.records import Content


class Litter:
    """What may be deleted once the head does not name it."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._keys: set[str] = set()

    def find(self, objects: Objects) -> None:
        """Note what is there, when the lease was just taken. Raises StoreError."""
        for item in objects.list("checkpoints"):
            self._folders.add("/".join(item.key.split("/")[:2]))
        self._keys |= {item.key for item in objects.list("files")}

    def add(self, content: Content) -> None:
        """Note what the head names now: a later one may not."""
        self._folders |= set(content.checkpoints.values())
        self._keys |= content.keys

    def add_folder(self, prefix: str) -> None:
        """Note a folder that this process is about to write."""
        self._folders.add(prefix)

    def add_files(self, keys: set[str]) -> None:
        self._keys |= keys

    def clear(self, objects: Objects, content: Content) -> None:
        """Delete what the newest head does not name. Raises StoreError."""
        for folder in sorted(self._folders - set(content.checkpoints.values())):
            delete_folder(objects, folder, MARKER)
            self._folders.discard(folder)
        if keys := sorted(self._keys - content.keys):
            objects.delete(keys)
            self._keys -= set(keys)
