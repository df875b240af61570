"""One line of a training log of another program: its format, and what its numbers mean.

The formats are a table. Each has a head (epoch, step, steps of an epoch), a time and a data wait.
The patterns are bounded and begin with a literal, so that no line makes them search for long. A
format prints either the latest step with the running mean of the epoch in brackets, or only the
mean of the last few steps. Nothing here looks at more than one line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_CHARACTERS = 4096
"""Longer lines are cut; lines of the known formats are much shorter."""

_NUMBER = r"\d{1,9}(?:\.\d{0,9})?"
_GAP = r"[ \t]{0,12}"
_STEP = rf"\[{_GAP}(?P<index>\d{{1,12}})/{_GAP}(?P<total>\d{{1,12}})"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII)


def _pair(name: str) -> re.Pattern[str]:
    """`Name 0.410 (0.402)`: the latest step, and the mean since the epoch began."""
    return _pattern(
        rf"\b{name}:?{_GAP}(?P<latest>{_NUMBER})s?{_GAP}\({_GAP}(?P<mean>{_NUMBER})s?{_GAP}\)"
    )


@dataclass(frozen=True)
class Format:
    """How a program writes a training line."""

    name: str
    example: str
    head: re.Pattern[str]
    time: re.Pattern[str]
    data: re.Pattern[str]
    window: int | None = None
    """Steps that a number is the mean of; None: the latest step, with the mean in brackets."""


_EPOCH = _pattern(rf"Epoch:{_GAP}\[{_GAP}(?P<epoch>\d{{1,9}}){_GAP}\]{_GAP}{_STEP}{_GAP}\]")

FORMATS: tuple[Format, ...] = (
    Format(
        name="pytorch/examples",
        example="Epoch: [0][100/5005] Time 0.8 (0.9) Data 0.0 (0.1)",
        head=_EPOCH,
        time=_pair("Time"),
        data=_pair("Data"),
    ),
    Format(
        name="timm",
        example="Train: 0 [ 100/1251 ( 8%)] Time: 0.4s, 640.1/s (0.5s, 500.3/s) Data: 0.0 (0.1)",
        head=_pattern(
            rf"Train:{_GAP}(?P<epoch>\d{{1,9}}){_GAP}{_STEP}{_GAP}"
            rf"\({_GAP}\d{{1,3}}{_GAP}%{_GAP}\){_GAP}\]"
        ),
        # The oldest version prints no mean of the time.
        time=_pattern(
            rf"\bTime:{_GAP}(?P<latest>{_NUMBER})s,{_GAP}(?P<rate>{_NUMBER})/s"
            rf"(?:{_GAP}\({_GAP}(?P<mean>{_NUMBER})s,{_GAP}(?P<mean_rate>{_NUMBER})/s{_GAP}\))?"
        ),
        data=_pair("Data"),
    ),
    Format(
        name="torchvision references",
        example="Epoch: [0] [  10/5005] eta: 1:02:03 time: 0.45 data: 0.01",
        head=_EPOCH,
        time=_pattern(rf"\btime:{_GAP}(?P<latest>{_NUMBER})(?![\d.])"),
        data=_pattern(rf"\bdata:{_GAP}(?P<latest>{_NUMBER})(?![\d.])"),
        window=20,
    ),
)

VALIDATION = _pattern(rf"\bTest(?: \(\w{{1,20}}\))?:{_GAP}(?:\w{{1,20}}{_GAP})?{_STEP}{_GAP}\]")
RANK = _pattern(
    r"[ \t]{0,8}(?:\[(?:default|rank)?[ \t]?(?P<bracket>\d{1,6})\]:?[ \t]"
    r"|\[(?:default|rank)(?P<tight>\d{1,6})\]:|(?P<label>\d{1,6}): |\[\d{1,6},(?P<mpi>\d{1,6})\]<)"
)
"""What torchrun, srun --label and mpirun put before the lines of each rank."""
ACCURACY = _pattern(rf"\b(?:(?:Prec|Acc)@[15]|acc[15]):?{_GAP}(?P<value>{_NUMBER})(?![\d.])")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A training line; times in seconds."""

    format: Format
    rank: str
    epoch: int
    index: int
    total: int
    time_s: float
    """The latest step, or the mean of the window."""
    data_s: float
    mean_time_s: float | None
    """The mean since the epoch began, where the format has it."""
    mean_data_s: float | None
    rounding_s: float
    """The largest rounding error of the printed data wait."""
    images: float | None
    """Images of a step, computed from the rate."""
    accuracies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Validation:
    """A validation line; never part of a mean."""

    index: int


def parse(text: str) -> LogLine | Validation | None:
    """The training or validation line that a text is; None for anything else."""
    text = text[:MOST_CHARACTERS]
    if "ime" not in text:
        return None
    for form in FORMATS:
        if head := form.head.search(text):
            time, data = (part.search(text, head.end()) for part in (form.time, form.data))
            if time and data:
                return _line(form, text, head, time, data)
    validation = VALIDATION.search(text)
    return Validation(int(validation["index"])) if validation else None


def _line(
    form: Format, text: str, head: re.Match[str], time: re.Match[str], data: re.Match[str]
) -> LogLine:
    times, waits = time.groupdict(), data.groupdict()
    mark = RANK.match(text, 0, head.start())
    mean = times.get("mean")
    seconds, rate = (mean, times.get("mean_rate")) if mean else (times["latest"], times.get("rate"))
    return LogLine(
        format=form,
        rank=next(filter(None, mark.groups()), "") if mark else "",
        epoch=int(head["epoch"]),
        index=int(head["index"]),
        total=int(head["total"]),
        time_s=float(times["latest"]),
        data_s=float(waits["latest"]),
        mean_time_s=float(mean) if mean else None,
        mean_data_s=float(waits["mean"]) if waits.get("mean") else None,
        rounding_s=0.5 * 0.1 ** decimals(waits.get("mean") or waits["latest"]),
        images=float(seconds) * float(rate) if rate else None,
        accuracies=tuple(match["value"] for match in ACCURACY.finditer(text, head.end())),
    )


def decimals(number: str) -> int:
    return len(number.partition(".")[2])


def batch_by_accuracy(values: set[str], most: int = 4096) -> int | None:
    """The smallest batch for which each accuracy, in percent, is a whole number of images. None
    where another one below its double fits as well, as with few or small values."""
    shares = [(float(value) / 100, 0.5001 * 0.1 ** decimals(value) / 100) for value in values]
    shares = [(share, slack) for share, slack in shares if 0 < share < 1]
    if len(shares) < 5:
        return None

    def fits(batch: int) -> bool:
        return all(
            abs(share * batch - round(share * batch)) <= slack * batch for share, slack in shares
        )

    # With fewer digits than the images need, every batch fits.
    most = min(most, int(min(0.25 / slack for _, slack in shares)))
    batch = next((batch for batch in range(2, most + 1) if fits(batch)), None)
    if batch is None or any(fits(other) for other in range(batch + 1, min(2 * batch, most + 1))):
        return None
    return batch
