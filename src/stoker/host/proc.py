"""Parsers for the text files of the kernel about the machine and this process.

Invariants: pure functions on text. What a text does not state is left out of the result, never
zero, whatever the text is: from another kernel, cut off, or of another kind altogether.
"""

from __future__ import annotations

import re

TICKS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
IDLE = ("idle", "iowait", "steal")


def whole_lines(text: str) -> list[str]:
    """The lines that end in a newline: where a text was cut off, the last may be half a number."""
    return text[: text.rfind("\n") + 1].splitlines()


def number(word: str) -> int | None:
    """A count as the kernel writes it; None for anything else."""
    return int(word) if word.isascii() and word.isdigit() else None


def single(text: str) -> int | None:
    """The number in a file that holds one number; None for a limit of `max`."""
    lines = whole_lines(text)
    return number(lines[0].strip()) if lines else None


def fields(text: str) -> dict[str, int]:
    """Numbers by name, from lines such as `MemFree: 12 kB` or `nr_throttled 3`, without units."""
    values = {}
    for line in whole_lines(text):
        words = line.split()
        value = number(words[1]) if len(words) > 1 else None
        if value is not None:
            values[words[0].rstrip(":")] = value
    return values


def machine_ticks(text: str) -> dict[str, int]:
    """`/proc/stat`: ticks of all cores together: all, busy, and each idle kind that is counted."""
    for line in whole_lines(text):
        name, *words = line.split() or [""]
        if name != "cpu":
            continue
        counts = [number(word) for word in words[: len(TICKS)]]
        ticks = {key: count for key, count in zip(TICKS, counts, strict=False) if count is not None}
        if "idle" not in ticks:
            return {}
        total = sum(ticks.values())
        idle = {key: ticks[key] for key in IDLE if key in ticks}
        return {"all": total, "busy": total - sum(idle.values()), **idle}
    return {}


def throttled(text: str) -> dict[str, float]:
    """`cpu.stat`, version 2 or 1: how often a quota stopped its group, how long over the cores."""
    values = fields(text)
    times: dict[str, float] = {}
    if "throttled_usec" in values:
        times["throttled_s"] = values["throttled_usec"] / 1e6
    elif "throttled_time" in values:
        times["throttled_s"] = values["throttled_time"] / 1e9
    if "nr_throttled" in values:
        times["throttled_times"] = values["nr_throttled"]
    return times


def pressure_s(text: str) -> float | None:
    """`/proc/pressure/*`: seconds in which some task waited for this resource."""
    for line in whole_lines(text):
        kind, *words = line.split() or [""]
        for word in words:
            name, _, value = word.partition("=")
            total = number(value)
            if kind == "some" and name == "total" and total is not None:
                return total / 1e6
    return None


def schedule_s(text: str) -> tuple[float, float] | None:
    """`schedstat` of a thread: seconds on a core, and seconds ready to run without a core."""
    lines = whole_lines(text)
    counts = [number(word) for word in lines[0].split()] if lines else []
    if len(counts) < 3 or counts[0] is None or counts[1] is None:
        return None
    return counts[0] / 1e9, counts[1] / 1e9


def after_name(text: str) -> list[str]:
    """`stat`: the fields after the name, which may hold anything; not the last: it may be cut."""
    opens, closes = text.find("("), text.rfind(")")
    return text[closes + 1 :].split()[:-1] if 0 <= opens < closes else []


def thread_ticks(text: str) -> tuple[str, int] | None:
    """`stat` of a thread: its name and its ticks on a core."""
    words = after_name(text)
    if len(words) < 13:
        return None
    user, system = number(words[11]), number(words[12])
    if user is None or system is None:
        return None
    return text[text.find("(") + 1 : text.rfind(")")], user + system


def start_ticks(text: str) -> int | None:
    """`stat` of a process: the ticks from the start of the machine to the start of the process."""
    words = after_name(text)
    return number(words[19]) if len(words) > 19 else None


def uptime_s(text: str) -> float | None:
    """`/proc/uptime`: seconds since the start of the machine."""
    match = re.match(r"(\d+\.\d+) ", text, re.ASCII)
    return float(match[1]) if match else None


def processor(text: str) -> dict[str, str]:
    """`/proc/cpuinfo`: each field, as written for the first processor that has it."""
    values: dict[str, str] = {}
    for line in whole_lines(text):
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    return values


def driver_version(text: str) -> str | None:
    """`/proc/driver/nvidia/version`: the version of the driver."""
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else None


def interface_bytes(text: str) -> dict[str, tuple[int, int]]:
    """`/proc/net/dev`: bytes received and sent by each interface of this network namespace."""
    counts = {}
    for line in whole_lines(text):
        name, colon, rest = line.rpartition(":")
        words = rest.split()
        if not colon or len(words) < 9:
            continue
        received, sent = number(words[0]), number(words[8])
        if received is not None and sent is not None:
            counts[name.strip()] = (received, sent)
    return counts
