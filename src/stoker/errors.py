"""The exceptions that a user sees, and the exit codes of a process.

Exit codes are a contract with schedulers: each has one meaning.
"""

FINISHED = 0
FAILED = 1
BAD_REQUEST = 2
INTERRUPTED = 75
"""Stopped on request with everything saved: the same command goes on from there."""
STEPPED_ASIDE = 76
"""A rank of an elastic run has saved everything; its launcher starts it again with other peers."""

_CODES = {"finished": FINISHED, "interrupted": INTERRUPTED, "failed": FAILED}


def exit_code(outcome: str, *, steps_aside: bool = False) -> int:
    """The exit code of a process whose attempt had this outcome: "finished", "interrupted" or
    "failed". An interrupted rank that only waits for other peers steps aside."""
    return STEPPED_ASIDE if outcome == "interrupted" and steps_aside else _CODES[outcome]


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
