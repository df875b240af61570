"""stoker plan --check CLAIMS.toml: refuse stated figures that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.errors import BAD_REQUEST, FINISHED, BadRequest
from stoker.plan.claims import check_claims
from stoker.plan.claims_file import read_claims
from stoker.show.claims import claim_lines
from stoker.text import say


def parser() -> Parser:
    flags = Parser(
        prog="stoker plan",
        usage="stoker plan --check CLAIMS.toml",
        description="Check stated figures of runs against each other: throughput, durations, "
        "prices, dollars, bids, zones, disks, batches and learning rates. Each contradiction is "
        "refused with the right figure.",
        examples=("stoker plan --check examples/claims/p4d_in_45_minutes.toml",),
    )
    flags.add_argument("--check", metavar="CLAIMS.toml", type=Path, help="a file of claims")
    return flags


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    if parsed.check is None:
        raise BadRequest("name a file of claims: stoker plan --check CLAIMS.toml")
    return check(parsed.check)


def check(path: Path) -> int:
    """Check a file of claims, and print what contradicts itself. Returns the exit code."""
    claims = read_claims(path)
    findings = check_claims(claims)
    say(*claim_lines(claims, findings))
    return BAD_REQUEST if any(finding.refused for finding in findings) else FINISHED
