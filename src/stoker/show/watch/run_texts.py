"""What a screen says about a run's ranks, machines, money, attempts and incidents.

Invariants: every text is printable. What was not measured is left out, never shown as zero.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.history.history import AttemptHistory, RunHistory
from stoker.history.usage import Usage
from stoker.run.kinds import Event
from stoker.run.listing import OUTCOMES, RUNNING
from stoker.run.rows import time_of
from stoker.show.cost import money
from stoker.text import clock, one_line, plural, printable, seconds, shown, size

MOST_MACHINES = 16
MOST_INCIDENTS, MOST_ATTEMPTS = 20, 20
RECENT_S = 60.0
"""Seconds over which the use of a machine is averaged."""
LABELS = {"save_failed": "save failed", "peer_lost": "rank lost"}


def money_texts(history: RunHistory, path: Path, is_running: bool, now: float) -> tuple[str, str]:
    """Dollars so far, to the end and an hour, or how to give a price; and the dollars so far."""
    spent, per_hour = history.dollars(now), history.per_hour
    if history.start is None:
        return "", ""
    if spent is None or per_hour is None:
        name = shown(str(path))
        return f"no price is known: stoker explain {name} --price-per-hour DOLLARS counts it", ""
    rate = f"{money(max(per_hour, 0.0))} an hour"
    remaining_s = history.remaining_s
    if not is_running or remaining_s is None:
        return f"{money(spent)} at {rate}", money(spent)
    total = spent + remaining_s / 3600 * max(per_hour, 0.0)
    return f"{money(spent)} so far, {money(total)} to the end, at {rate}", money(spent)


def rank_text(history: RunHistory) -> str:
    """The slowest and the fastest rank, by their own time of a step; empty for a single rank."""
    times = [(own_s, rank) for rank in history.ranks.values() if (own_s := rank.recent_own_s)]
    if len(times) < 2:
        return ""
    (fast_s, fast), (slow_s, slow) = (
        pick(times, key=lambda pair: (pair[0], pair[1].rank)) for pick in (min, max)
    )

    def where(host: str) -> str:
        return f" on {printable(one_line(host))}" if host else ""

    return (
        f"slowest rank {slow.rank}{where(slow.host)} {seconds(slow_s)}, "
        f"fastest rank {fast.rank}{where(fast.host)} {seconds(fast_s)}: {slow_s / fast_s:.2f}x"
    )


def machine_texts(history: RunHistory) -> tuple[tuple[str, ...], ...]:
    """What each machine of the newest attempt does: groups of figures."""
    began = history.attempts[history.newest].began if history.newest in history.attempts else None
    hosts = [
        (host, recent)
        for host, rows in sorted(history.usage.items())
        if (recent := recent_rows(rows)) and (began is None or recent[-1].time >= began)
    ]
    start = history.start
    machines = []
    for host, rows in hosts[:MOST_MACHINES]:
        name = f"{printable(one_line(host))}: " if host else ""
        groups = usage_texts(rows, is_shared=bool(start and start["local_world"] > 1))
        if groups:
            machines.append((f"{name}{groups[0]}", *groups[1:]))
    if len(hosts) > MOST_MACHINES:
        machines.append((f"and {plural(len(hosts) - MOST_MACHINES, 'more machine')}",))
    return tuple(machines)


def recent_rows(rows: Sequence[Usage]) -> Sequence[Usage]:
    """The rows of the last minute."""
    first = len(rows)
    while first > 0 and rows[-1].time - rows[first - 1].time < RECENT_S:
        first -= 1
    return rows[first:]


def mean_of(rows: Sequence[Usage], name: str) -> float | None:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(values) / len(values) if values else None


def usage_texts(rows: Sequence[Usage], is_shared: bool) -> list[str]:
    """What a machine did in the last minute: its GPUs, CPU, memory, disks and links. With several
    ranks on it, cores and memory are those of its first rank."""
    of = {name: mean_of(rows, name) for name in Usage.__dataclass_fields__ if name != "gpus"}
    rank = " a rank" if is_shared else ""
    cpu = [
        formatted(of, "busy", "{:.0%} busy"),
        formatted(of, "cores", f"{{:.1f}} cores{rank}"),
        formatted(of, "steal", "{:.1%} stolen"),
    ]
    memory = [
        sized(of, "memory_bytes", f"{{}}{rank}"),
        sized(of, "available_bytes", "{} free"),
    ]
    disk = [sized(of, "read_s", "read {}/s"), sized(of, "write_s", "write {}/s")]
    link = [sized(of, "received_s", "in {}/s"), sized(of, "sent_s", "out {}/s")]
    groups = {"CPU": cpu, "memory": memory, "disk": disk, "link": link}
    lines = [
        f"{name} {', '.join(filter(None, texts))}" for name, texts in groups.items() if any(texts)
    ]
    return [*gpu_texts(rows[-1].gpus), *lines]


def formatted(of: Mapping[str, float | None], name: str, form: str) -> str:
    value = of[name]
    return "" if value is None else form.format(value)


def sized(of: Mapping[str, float | None], name: str, form: str) -> str:
    value = of[name]
    return "" if value is None else form.format(size(max(value, 0.0)))


def gpu_texts(gpus: Mapping[int, Mapping[str, float]]) -> list[str]:
    """One line about a GPU, or about all GPUs of a machine, with the range of each figure."""
    if not gpus:
        return []
    name = f"{len(gpus)} GPUs" if len(gpus) > 1 else f"GPU {next(iter(gpus))}"
    used, total = spread(gpus, "used_bytes", 1e-9), spread(gpus, "total_bytes", 1e-9)
    memory = f"{used} of {total} GB" if used and total else f"{used} GB" if used else ""
    figures = [
        unit(spread(gpus, "busy", 100), "% busy"),
        memory,
        unit(spread(gpus, "power_w", 1), " W"),
        unit(spread(gpus, "temperature_c", 1), " °C"),
    ]
    if not any(figures):
        return []
    return [f"{name} {', '.join(filter(None, figures))}"]


def unit(value: str, word: str) -> str:
    return f"{value}{word}" if value else ""


def spread(gpus: Mapping[int, Mapping[str, float]], name: str, scale: float) -> str:
    """A figure of all GPUs: one number, or the least and the most."""
    values = [gpu[name] * scale for gpu in gpus.values() if name in gpu]
    if not values:
        return ""
    digits = 1 if name.endswith("_bytes") else 0
    low, high = f"{min(values):,.{digits}f}", f"{max(values):,.{digits}f}"
    return low if low == high else f"{low}-{high}"


def attempt_texts(history: RunHistory, state: str) -> tuple[str, ...]:
    """A line for each attempt, the newest first."""
    numbers = sorted(history.attempts, reverse=True)
    lines = [attempt_text(history.attempts[number], history, state) for number in numbers]
    rest = len(lines) - MOST_ATTEMPTS
    more = [f"and {plural(rest, 'earlier attempt')}"] if rest > 0 else []
    return (*lines[:MOST_ATTEMPTS], *more)


def attempt_text(attempt: AttemptHistory, history: RunHistory, state: str) -> str:
    """When an attempt began, how it ended, how long it took, and its steps."""
    began, last = attempt.began, attempt.last
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(began)) if began else "at unknown time"
    is_running = attempt.number == history.newest and state == RUNNING
    took = f"{clock(last - began)}, " if began and last else ""
    redone = f", {attempt.redone:,} of them repeated" if attempt.redone else ""
    return (
        f"{attempt.number}  {when}  {ending(attempt, is_running)} "
        f"{'for' if is_running else 'after'} {took}{plural(attempt.steps, 'step')}{redone}"
    )


def ending(attempt: AttemptHistory, is_running: bool) -> str:
    """How an attempt ended."""
    if attempt.end is None:
        return "running" if is_running else "killed"
    outcome, reason = attempt.end["outcome"], printable(one_line(attempt.end["reason"]))
    word = OUTCOMES.get(outcome, "") if outcome != "rolled back" else ""
    word = word or printable(one_line(outcome))
    return f"{word} ({reason})" if reason else word


def incident_texts(history: RunHistory, now: float) -> tuple[str, ...]:
    """Damage in the files, and the latest incidents, the newest first; equal ones are one line."""
    latest: dict[str, tuple[float, int]] = {}
    for event in history.incidents:
        words = incident_text(event)
        _, count = latest.pop(words, (0.0, 0))
        latest[words] = time_of(event), count + 1
    lines = []
    for words, (at, count) in list(reversed(latest.items()))[:MOST_INCIDENTS]:
        age = f"{clock(max(now - at, 0.0))} ago: " if at else ""
        times = f" ({count:,} times)" if count > 1 else ""
        lines.append(f"{age}{words}{times}")
    damage = history.run.damage.notes(history.run.path)
    return (*(printable(one_line(note)) for note in damage), *lines)


def incident_text(event: Event) -> str:
    """An incident in words, with its rank where it is not the first."""
    kind = event["kind"]
    words = event.get("words") or event.get("reason") or ""
    if kind == "skipped":
        words = f"step {event['step']:,}: its batch had caused a roll-back"
    text = printable(one_line(words if isinstance(words, str) else ""))
    rank = f" on rank {event['rank']}" if event["rank"] else ""
    return f"{LABELS.get(kind, kind)}{rank}: {text}" if text else f"{LABELS.get(kind, kind)}{rank}"
