"""Contradictions between stated figures, as sentences: what was stated, and what would be right."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.plan.claims.check import ClaimFinding
from stoker.plan.claims.claim import RunClaim
from stoker.text import clock, plural, printable

SENTENCES = {
    "epoch-duration": "{images_per_s:,.5g} images/s makes an epoch of {images:,.0f} images "
    "{right_s}, not {stated_s}: {stated_s} would take {right_rate:,.5g} images/s",
    "run-duration": "{epochs:,.0f} epochs of {seconds_per_epoch:,.4g} s take {right_s}, "
    "not {stated_s}",
    "run-throughput": "{epochs:,.0f} epochs of {images:,.0f} images take {right_s} at "
    "{images_per_s:,.5g} images/s, not {stated_s}",
    "step-duration": "a step of {batch_size:,.0f} images takes {right:,.4g} s at "
    "{images_per_s:,.5g} images/s, not {stated:,.4g} s",
    "cost": "{hours:,.4g} h of {machines:,.0f} x ${price:,.2f} an hour cost ${right:,.2f}, "
    "not ${stated:,.2f}",
    "saving": "${price:,.2f} is {right:.1f} % less than ${on_demand:,.2f}, not {stated:.4g} %",
    "bid": "the bid of ${stated:,.2f} an hour is under the price of ${right:,.2f}: no machine "
    "starts; bid at least ${right:,.2f}",
    "zone": "the machine is in zone {stated}, its disk in {right}: a disk is attached only within "
    "its zone; rent the machine in {right}",
    "disk": "the disk of {stated:,.5g} GB is too small for {right:,.5g} GB of images: make it "
    "larger",
    "several-gpus": "{stated:,.5g} images/s on {gpus:,.0f} GPUs is {times:.1f} times the "
    "{one:,.5g} of one GPU: {gpus:,.0f} GPUs reach at most {right:,.5g}, or one GPU makes at least "
    "{right_one:,.5g}",
    "batch": "{gpus:,.0f} GPUs with {each:,.0f} images each make a batch of {right:,.0f}, not "
    "{stated:,.0f}",
    "gpu-memory": "{gpus:,.0f} GPUs of {each:,.4g} GB have {right:,.5g} GB, not {stated:,.5g} GB",
    "phase-epochs": "the phases have {right:,.0f} epochs in all, not {stated:,.0f}",
    "phase-minutes": "the phases take {right_s} in all, not {stated_s}",
    "memory": "out of memory with {stated:,.0f} images on a GPU, but '{other}' runs with "
    "{right:,.0f} on the same one",
    "one-rate": "the learning rate {stated:g} is the same for batches of {sizes} images: scaled "
    "from {smallest:,.0f} it is {right:.4g} for {largest:,.0f}",
    "rate": "the learning rate {stated:g} for a batch of {batch_size:,.0f} is "
    "{factor:.0f} times {direction} than the {right:.4g} that {base:g} for {base_size:,.0f} images "
    "gives",
}


def sentence(finding: ClaimFinding) -> str:
    """The sentence of one contradiction."""
    figures = dict(finding.figures)
    stated, right = figures["stated"], figures["right"]
    if isinstance(stated, float | int) and isinstance(right, float | int):
        larger = stated > right
        figures["factor"] = stated / right if larger else right / stated
        figures["direction"] = "larger" if larger else "smaller"
        figures["stated_s"], figures["right_s"] = duration(stated), duration(right)
    return printable(SENTENCES[finding.rule].format(**figures))


def duration(seconds: float) -> str:
    """Seconds up to five minutes, such as 85 s or 12.5 s, and a clock's figures above."""
    return f"{seconds:.3g} s" if seconds < 300 else clock(seconds)


def claim_lines(claims: Sequence[RunClaim], findings: Sequence[ClaimFinding]) -> list[str]:
    """A line for each contradiction and warning, and one that sums up."""
    lines = [
        f"{'REFUSED' if each.refused else 'warning'}: {printable(each.claim)}: {sentence(each)}"
        for each in findings
    ]
    refused = len({each.claim for each in findings if each.refused})
    rows = len([each for each in findings if each.refused])
    if refused:
        summary = (
            f"{plural(rows, 'contradiction')} in {refused:,} of {plural(len(claims), 'claim')}: "
            "correct the figures and check again"
        )
    else:
        summary = f"OK: no contradiction in {plural(len(claims), 'claim')}"
    return [*lines, summary]
