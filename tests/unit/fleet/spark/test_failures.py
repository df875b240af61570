"""Errors of Spark become a sentence that says what to do."""

from __future__ import annotations

import errno
import sys

import pytest

from stoker.errors import BadRequest, StokerError
from stoker.fleet.spark.check import facts_of, own_version, question
from stoker.fleet.spark.failures import PACKAGES, TaskFailure, sentence_of

MASTER = "spark://head:7077"
OWN = ".".join(map(str, sys.version_info[:2]))
MISMATCH = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0\n"
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in "
    f"worker has different version: 3.9 than that in driver: {OWN}, PySpark cannot run with "
    "different minor versions.\n\tat org.apache.spark.api.python.Foo(Bar.scala:3)"
)
NO_MODULE = (
    "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'cv2'\n"
    "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
)
RAISED = (
    "Job aborted\nTraceback (most recent call last):\n  File x\nValueError: shape \x1b[31m(3)\n"
    "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MISMATCH, ["Python 3.9", f"Python {OWN}", "PYSPARK_PYTHON"]),
        (NO_MODULE, ["lack cv2", "pip install opencv-python-headless", "PYSPARK_PYTHON"]),
        (RAISED, ["ValueError: shape", "run the same command to continue"]),
        ("", ["Spark at spark://head:7077 failed"]),
    ],
)
def test_sentences(text: str, words: list[str]) -> None:
    sentence = sentence_of(RuntimeError(text), MASTER)
    assert all(word in sentence for word in words), sentence
    assert sentence.isprintable()


@pytest.mark.parametrize(
    "error",
    [
        StokerError("run it again"),
        BadRequest("name another folder"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_what_a_task_raises_is_raised_where_its_result_is_wanted(
    error: StokerError | OSError,
) -> None:
    again = TaskFailure.of(error).error()
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_the_question_is_answered_with_what_is_there_and_what_is_not() -> None:
    host, versions, missing = question({"numpy": "numpy", "no_such_module": "nothing"})(0)
    assert host
    assert versions == {"numpy": own_version("numpy")}
    assert list(missing) == ["no_such_module"]


def test_the_question_needs_nothing_of_ours() -> None:
    code = question({}).__code__
    assert {"stoker", "PACKAGES"}.isdisjoint({*code.co_names, *code.co_freevars})


class TestFacts:
    OWN_VERSIONS = {package: own_version(package) for package in PACKAGES.values()}  # noqa: RUF012

    def test_hosts(self) -> None:
        answers = [("b", self.OWN_VERSIONS, {}), ("a", self.OWN_VERSIONS, {})] * 2
        facts = facts_of(answers, MASTER)
        assert (facts.hosts, facts.other_versions) == (["a", "b"], [])

    def test_all_that_is_missing_is_named_at_once(self) -> None:
        lacks = [{"cv2": "ModuleNotFoundError: x"}, {"PIL": "ImportError: libjpeg.so: no file"}]
        with pytest.raises(BadRequest) as caught:
            facts_of([(f"h{n}", {}, each) for n, each in enumerate(lacks)], MASTER)
        text = str(caught.value)
        assert "lack PIL, cv2" in text
        assert "pip install pillow opencv-python-headless" in text
        assert "libjpeg.so" in text

    def test_other_versions_are_told(self) -> None:
        other = {**self.OWN_VERSIONS, "pillow": "1.0"}
        (line,) = facts_of([("a", other, {})] * 3, MASTER).other_versions
        assert "a has pillow 1.0" in line
