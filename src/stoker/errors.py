"""The exceptions that a user sees, and the exit codes.

Invariant: exit codes are a contract with schedulers; each has one meaning.
"""

FINISHED = 0
FAILED = 1
BAD_REQUEST = 2
INTERRUPTED = 75
"""Stopped on request, with everything saved: the same command resumes."""
STEPPED_ASIDE = 76
"""A rank tells its launcher: the run can go on, start me again (elastic: with new peers)."""

_CODES = {"finished": FINISHED, "interrupted": INTERRUPTED, "failed": FAILED}


def exit_code(outcome: str, *, steps_aside: bool = False) -> int:
    """The exit code of an outcome. An interrupted rank that only waits for peers steps aside."""
    return STEPPED_ASIDE if outcome == "interrupted" and steps_aside else _CODES[outcome]


class StokerError(Exception):
    """An error that the user can act on. The message says what is wrong and what to do."""

    exit_code = FAILED

    @property
    def lines(self) -> list[str]:
        """The message as it is printed: one line, except for a table."""
        return [str(self)]


class BadRequest(StokerError):
    """The command cannot be carried out as written; nothing was started."""

    exit_code = BAD_REQUEST


class NewerFormat(BadRequest):
    """A newer version of Stoker wrote this. It is not read, changed or removed."""

    def __init__(self, path: object, number: int, newest: int) -> None:
        known = "format 1" if newest == 1 else f"formats 1 to {newest}"
        super().__init__(
            f"{path} has format {number}, this version of Stoker reads {known}: "
            "use a newer version of Stoker"
        )


def is_readable(path: object, number: object, newest: int) -> bool:
    """Whether `number` is a format number up to `newest`. Raises NewerFormat where it is larger."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        return False
    if number > newest:
        raise NewerFormat(path, number, newest)
    return True


class Interrupted(StokerError):
    """Stopped on request; the same command resumes."""

    exit_code = INTERRUPTED


class PeerLost(StokerError):
    """Another rank of an elastic run is lost, and this one cannot continue without it."""

    exit_code = STEPPED_ASIDE
