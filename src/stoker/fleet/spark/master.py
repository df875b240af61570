"""The address of a Spark master, and the settings of a session, as a user gives them.

Invariants: pure checks of text, and of what is installed on this machine. Neither pyspark nor Java
is loaded.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from stoker.errors import BadRequest, StokerError
from stoker.text import shown

SCHEME = "spark://"
LOCAL = re.compile(r"local(\[(\*|[1-9]\d{0,3})\])?")
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_KEY = re.compile(r"spark\.[A-Za-z0-9_.-]+")
ANSWER_S = 10.0
"""Seconds that a master has to accept a connection."""


def is_master(name: str) -> bool:
    """Whether this is the address of a master, right or wrong, rather than another place."""
    return name.startswith(SCHEME) or name.partition("[")[0] == "local"


def is_local(master: str) -> bool:
    """Whether the tasks run inside the session's own process, on this machine."""
    return LOCAL.fullmatch(master) is not None


def addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of every master; none for local[N]. Raises BadRequest for another form."""
    if is_local(master):
        return []
    parts = [_HOST.fullmatch(part) for part in master.removeprefix(SCHEME).split(",")]
    pairs = [(part[1].strip("[]"), int(part[2])) for part in parts if part]
    wrong = len(pairs) < len(parts) or any(not 0 < port < 65536 for _, port in pairs)
    if wrong or not master.startswith(SCHEME):
        raise BadRequest(
            f"'{shown(master)}' is no Spark master: expected spark://HOST:PORT or local[N]"
        )
    return pairs


def settings_of(words: Iterable[str]) -> dict[str, str]:
    """The settings of KEY=VALUE words. Raises BadRequest for a word of another form."""
    settings = {}
    for word in words:
        name, mark, value = word.partition("=")
        if not mark or not _KEY.fullmatch(name):
            raise BadRequest(
                f"--spark-conf takes KEY=VALUE such as spark.executor.memory=4g, not "
                f"'{shown(name)}'"
            )
        settings[name] = value
    return settings


def require_installed() -> None:
    """Raise BadRequest where pyspark or Java is missing on this machine."""
    if find_spec("pyspark") is None:
        raise BadRequest("packing on Spark needs pyspark: pip install pyspark")
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME ({shown(home)}) has no bin/java" if home else "no java is in PATH"
        raise BadRequest(
            f"Spark needs Java, and {where}: install Java 17 or later, such as "
            "openjdk-17-jre-headless, or set JAVA_HOME"
        )


def require_answer(master: str) -> None:
    """Raise StokerError where no master accepts a connection: Spark itself tries for a minute."""
    reasons = []
    for host, port in addresses(master):
        try:
            socket.create_connection((host, port), ANSWER_S).close()
            return
        except OSError as error:
            reasons.append(error.strerror or str(error))
    if reasons:
        raise StokerError(
            f"no Spark master answers at {master} ({reasons[0]}): start one, or correct --on"
        )
