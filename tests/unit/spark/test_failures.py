"""Finding Holdfast's own error in what Spark makes of it."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from holdfast.errors import (
    HoldfastError,
    StateError,
    StateValueError,
    StoreVersionError,
    UserFunctionError,
)
from holdfast.spark.failures import headline, original_error, summary

TRACEBACK = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/holdfast/spark/task.py", line 56, in __call__
    yield from task.run(batches)
  File "/app/holdfast/runtime/operators.py", line 104, in process
    raise self._located(error) from error
"""
CHAINED = """\
Traceback (most recent call last):
  File "/app/holdfast/state/codec_python.py", line 108, in refuse
    raise StateValueError(
holdfast.errors.StateValueError: a state declared int cannot hold 'text' (str)

The above exception was the direct cause of the following exception:

"""
MESSAGE = """\
operator 'count' (uid 'c'), subtask 2/4: ZeroDivisionError: division by zero
  key: 'a'
  row: Event(k='a', n=0)
Traceback (most recent call last):
  File "program.py", line 12, in process_element
    yield 1 / value.n
ZeroDivisionError: division by zero"""


def test_an_error_of_the_driver_is_found_among_the_causes() -> None:
    cause = StoreVersionError("another version")
    failure = RuntimeError("the query failed")
    failure.__cause__ = ValueError("in between")
    failure.__cause__.__context__ = cause
    assert original_error(failure) is cause
    assert original_error(cause) is cause


@pytest.mark.parametrize(
    "trailer",
    [
        "",
        "\n",
        "\n\n\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(x.scala:1)",
        "\n\tat org.apache.spark.Something\n\tat java.lang.Thread.run(Thread.java:1)",
        "\n\nDriver stacktrace:\n\tat org.apache.spark.scheduler.DAGScheduler",
        " SQLSTATE: 38000",
        "\n=== Streaming Query ===\nIdentifier: x [id = 1]",
    ],
)
def test_an_error_of_a_worker_is_rebuilt_from_its_text(trailer: str) -> None:
    text = f"{TRACEBACK}holdfast.errors.UserFunctionError: {MESSAGE}{trailer}"
    found = original_error(RuntimeError(text))
    assert type(found) is UserFunctionError
    assert str(found) == MESSAGE


def test_a_message_that_spark_repeats_is_taken_once() -> None:
    once = f"{TRACEBACK}holdfast.errors.UserFunctionError: {MESSAGE}"
    text = f"{once}\n\n\tat org.apache.spark.x\nCaused by: {once}\n\tat org.apache.spark.y"
    assert str(original_error(RuntimeError(text))) == MESSAGE


def test_of_chained_errors_the_one_that_says_where_is_taken() -> None:
    located = "operator 'wrong' (uid 'w'), subtask 1/1: a state declared int cannot hold 'text'"
    text = f"{CHAINED}{TRACEBACK}holdfast.errors.StateValueError: {located}\n\tat org.apache.x"
    found = original_error(RuntimeError(text))
    assert type(found) is StateValueError
    assert str(found) == located


def test_an_error_that_is_not_of_holdfast_is_left_as_it_is() -> None:
    for text in (
        "out of memory",
        "holdfast.errors.NoSuchError: text",
        "holdfast.errors.annotations: text",
    ):
        failure = RuntimeError(text)
        assert original_error(failure) is failure


def test_an_unknown_name_does_not_hide_a_known_one() -> None:
    text = "holdfast.errors.NoSuchError: x\nholdfast.errors.UserFunctionError: the real one"
    found = original_error(RuntimeError(text))
    assert type(found) is UserFunctionError
    assert str(found) == "the real one"


def test_a_chain_that_bites_its_tail_comes_to_an_end() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert original_error(first) is first
    own = HoldfastError("own")
    own.__cause__ = own
    assert original_error(own) is own


LOST = "Some data may have been lost because they are not available in Kafka any more"
STACK = "\n\tat org.apache.spark.sql.kafka010.KafkaMicroBatchStream.report(x.scala:1)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{LOST}{STACK}", LOST),
        (f"{LOST} SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x", LOST),
        (
            f"Job aborted.{STACK}\nCaused by: java.io.IOException: a\n\tat x"
            f"\nCaused by: {LOST}{STACK}",
            f"Job aborted.\nCaused by: {LOST}",
        ),
        (f"{LOST}{STACK}\nCaused by: {LOST}{STACK}", LOST),
        ("'a' is not a column", "'a' is not a column"),
        (STACK, STACK),
        ("", ""),
    ],
)
def test_of_an_error_of_spark_the_stacks_and_plans_are_left_out(text: str, said: str) -> None:
    assert summary(PySparkException(text)) == said


@pytest.mark.parametrize("kind", [UserFunctionError, RuntimeError])
def test_an_error_of_others_is_told_whole(kind: type[Exception]) -> None:
    assert summary(kind(f"{MESSAGE} SQLSTATE: 1")) == f"{MESSAGE} SQLSTATE: 1"


def test_the_headline_is_the_first_line_that_says_something() -> None:
    text = "An error occurred while calling o11.count.\n: java.io.IOException: disk\n\tat org.x"
    failure = type("Py4JError", (Exception,), {"__module__": "py4j.protocol"})(text)
    assert headline(failure) == "java.io.IOException: disk"
    assert headline(StateError("a\nb")) == "a"
    assert headline(ValueError()) == "ValueError"
