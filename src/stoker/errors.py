"""The one exception a user is meant to see, and what a process says with its exit code.

Exit codes are a contract with schedulers; each has one meaning.
"""

FINISHED = 0
FAILED = 1
BAD_REQUEST = 2
INTERRUPTED = 75
"""Stopped on request with everything saved: the same command goes on from there."""
STEPPED_ASIDE = 76
"""Between an elastic launcher and its ranks: everything saved, start me again with other peers."""


class StokerError(Exception):
    """Something the user can act on: names the thing, the place and the next command to type."""

    exit_code = FAILED


class BadRequest(StokerError):
    """What was asked for cannot be done as asked; nothing was started."""

    exit_code = BAD_REQUEST


class NewerFormat(BadRequest):
    """A newer version wrote this: it is not read, and nothing of it is changed or removed."""

    def __init__(self, place: object, number: int, newest: int) -> None:
        known = "format 1" if newest == 1 else f"formats 1 to {newest}"
        super().__init__(
            f"{place} has format {number}, this version of Stoker reads {known}: "
            "use a newer version of Stoker"
        )


def is_readable(place: object, number: object, newest: int) -> bool:
    """Whether `number` is a format that this version reads; False where it is no format number at
    all. Raises NewerFormat, which names the place, where it is larger than the newest known."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        return False
    if number > newest:
        raise NewerFormat(place, number, newest)
    return True


class Interrupted(StokerError):
    """Stopped on request; the same command goes on."""

    exit_code = INTERRUPTED


class PeerLost(StokerError):
    """A rank of an elastic run cannot go on without one that is gone."""

    exit_code = STEPPED_ASIDE
