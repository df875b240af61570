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


class Interrupted(StokerError):
    """Stopped on request; the same command goes on."""

    exit_code = INTERRUPTED


class PeerLost(StokerError):
    """A rank of an elastic run cannot go on without one that is gone."""

    exit_code = STEPPED_ASIDE
