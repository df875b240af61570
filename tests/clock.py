"""Days of the calendar: commands on a later one, files of an earlier one.

Commands run under a preload that moves the calendar and no timer. Debian's faketime moves timers
too, and `time.sleep` fails below it (libfaketime 0.9.10, also with DONT_FAKE_MONOTONIC). Times of
files stay the kernel's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import UTC, date, datetime, time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

DAYS = "STOKER_TEST_DAYS_AHEAD"
SOURCE = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead_s(void) {
  const char *days = getenv("STOKER_TEST_DAYS_AHEAD");
  return days ? 86400L * atol(days) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int code = syscall(SYS_clock_gettime, clock, now);
  int is_calendar = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!code && is_calendar) now->tv_sec += ahead_s();
  return code;
}

int gettimeofday(struct timeval *now, void *zone) {
  int code = syscall(SYS_gettimeofday, now, zone);
  if (!code && now) now->tv_sec += ahead_s();
  return code;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""


@cache
def library() -> Path:
    """The preload, compiled once. Skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the preload that moves the clock")
    folder = Path(mkdtemp(prefix="clock-"))
    source, made = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def days_ahead(days: int) -> dict[str, str]:
    """Variables of a process whose clock, and whose children's, are so many days ahead."""
    return {"LD_PRELOAD": str(library()), DAYS: str(days)}


def written_on(day: date, path: Path, content: str | bytes) -> Path:
    """A file as if it had been written on a day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    noon = datetime.combine(day, time(12), UTC).timestamp()
    os.utime(path, (noon, noon))
    return path
