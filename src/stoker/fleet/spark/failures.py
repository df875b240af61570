"""Errors of Spark as one sentence that says what to do.

Invariants: what a task itself refuses travels as its result, not as an error of Spark, so it is
neither tried again nor wrapped. Texts from outside are shortened and printable.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from stoker.errors import BadRequest, StokerError
from stoker.text import one_line, shown

_VERSIONS = re.compile(
    r"Python in worker has different version: (\S+) than that in driver: (\S+?),"
)
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
PACKAGES = {
    "numpy": "numpy",
    "cv2": "opencv-python-headless",
    "simplejpeg": "simplejpeg",
    "PIL": "pillow",
    "pyarrow": "pyarrow",
}
"""What every worker needs beside Stoker itself: the names of the modules and of the packages."""


@dataclass(frozen=True)
class TaskFailure:
    """Why a task failed, as it travels back: an error of Stoker, or of the operating system."""

    text: str
    number: int = 0
    """The error number of the operating system; 0 for an error of Stoker."""
    is_request: bool = False

    @classmethod
    def of(cls, error: StokerError | OSError) -> TaskFailure:
        if isinstance(error, StokerError):
            return cls(str(error), is_request=isinstance(error, BadRequest))
        return cls(error.strerror or str(error), error.errno or 0)

    def error(self) -> Exception:
        """The error to raise where the results are wanted."""
        if self.number:
            return OSError(self.number, self.text)
        return BadRequest(self.text) if self.is_request else StokerError(self.text)


def sentence_of(error: BaseException, master: str) -> str:
    """What went wrong in a job or a session, and what to do."""
    text = str(error)
    if versions := _VERSIONS.search(text):
        return version_sentence(versions[1], master)
    if missing := _MISSING.findall(text):
        return missing_sentence(sorted({name.partition(".")[0] for name in missing}), master)
    raised = _RAISED.findall(text)
    # The first line of a Java error names the job; the last Python error names the reason.
    reason = ": ".join(raised[-1]) if raised else one_line(text)
    return (
        f"Spark at {master} failed ({shown(one_line(reason))[:300]}); finished work is kept: run "
        "the same command to continue"
    )


def version_sentence(worker: str, master: str) -> str:
    own = ".".join(map(str, sys.version_info[:2]))
    return (
        f"the workers of {master} run Python {shown(worker).rstrip('.')} and this machine Python "
        f"{own}: set PYSPARK_PYTHON to a Python {own} that every worker has"
    )


def missing_sentence(modules: list[str], master: str) -> str:
    names = " ".join(PACKAGES.get(module, module) for module in modules)
    return (
        f"the workers of {master} lack {', '.join(modules)}: on every worker run 'pip install "
        f"{names}' for the Python that it uses, or set PYSPARK_PYTHON to one that has them"
    )
