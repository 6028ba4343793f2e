"""`why`, on the texts that versions of Spark make of an error in a worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forebay_spark_runtime.driver.failure import error_in, why
from forebay_state_api.contract.checksummed import TornObjectError
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import (
    AbandonedTimelineError,
    ConfigurationError,
    CorruptStateError,
    ForebayError,
    FunctionError,
    IncompatibleTypeError,
    Location,
    OutputSchemaError,
    StorageError,
)

SENTENCE = (
    "Prices.process_element (operator 'it\\'s', key ('a', 1), batch 7, partition 1) raised "
    "KeyError: 'a'\n"
    '  File "/home/ann/prices.py", line 12, in process_element\n'
    "    yield row.user, price(row)"
)
RAISED = f"forebay_state_api.errors.FunctionError: {SENTENCE}"
PLAN = "\n=== Streaming Query ===\nIdentifier: [id = 1]\nLogical Plan:\n+- CollectMetrics forebay:u"
TEXTS = {
    "4.3": f"[STREAM_FAILED] Query terminated with exception: [PYTHON_EXCEPTION] An exception was "
    f"thrown from the Python worker: {RAISED}\n SQLSTATE: 38000 SQLSTATE: XXKST{PLAN}",
    "3.5": "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent "
    "failure: Lost task 0.0 (TID 1): org.apache.spark.api.python.PythonException: Traceback (most "
    f'recent call last):\n  File "worker.py", line 1, in main\n    process()\n{RAISED}\n\n'
    f"\tat org.apache.spark.api.python.BasePythonRunner.x(P.scala:1)\n\nDriver stacktrace:{PLAN}",
    "bounded": f"\n  An exception was thrown from the worker.\n{RAISED}\n\nJVM stacktrace:\nx",
}


class ShelfError(StorageError):
    """An error of a plugin."""

    __module__ = "shelf_backend.storage"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_error_is_found_with_its_fields(text):
    error = why(Exception(text))
    assert type(error) is FunctionError
    assert str(error) == SENTENCE
    assert error.location == Location(
        operator="it's",
        function="Prices.process_element",
        key="('a', 1)",
        batch_id=7,
        partition="1",
    )


def test_a_query_is_asked_for_its_exception():
    def query(exception):
        return SimpleNamespace(exception=lambda: exception)

    assert why(query(None)) is None
    assert isinstance(why(query(Exception(TEXTS["4.3"]))), FunctionError)
    others = ValueError("an error of Spark")
    assert why(query(others)) is others


def test_an_error_of_the_driver_is_its_own_reason():
    error = StorageError("x")
    assert why(error) is error


def test_what_is_not_in_a_message_is_not_in_its_place():
    error = error_in("forebay_state_api.errors.CorruptStateError: operator 'u': runs/1 is cut")
    assert type(error) is CorruptStateError
    assert error.location == Location(operator="u")
    assert error_in("forebay_state_api.errors.StorageError: no such bucket").location is None


def test_a_place_without_a_function_has_batch_and_partition():
    error = error_in(
        "forebay_state_api.errors.OutputSchemaError: column 'n' (operator \"a'b\", batch 3, "
        "partition 2): not a whole number: 'x'"
    )
    assert type(error) is OutputSchemaError
    assert error.location == Location(operator="a'b", batch_id=3, partition="2")


def test_fields_of_classes_are_there():
    error = error_in(
        "x forebay_state_api.errors.IncompatibleTypeError: stored as int, declared as str: no"
    )
    assert type(error) is IncompatibleTypeError
    assert (error.stored, error.declared, error.reason) == ("int", "str", "no")
    left = error_in(
        "forebay_state_api.errors.AbandonedTimelineError: version 3@a of operator 'u' in /s is on a"
        " timeline that the query has left: 4@b, the newest version, continues 2@a in its place."
    )
    assert type(left) is AbandonedTimelineError
    assert (left.abandoned, left.newest) == ("3@a", "4@b")
    assert str(left).startswith("version 3@a of operator")


def test_a_class_of_a_newer_release_is_an_error_of_forebay():
    error = error_in("forebay_state_api.errors.NewError: what happened")
    assert (type(error), str(error)) == (ForebayError, "what happened")


@pytest.mark.parametrize(
    ("raised", "documented"),
    [
        (ObjectNotFoundError, StorageError),
        (TornObjectError, CorruptStateError),
        (ShelfError, StorageError),
    ],
)
def test_a_class_below_a_documented_one_is_that_one(raised, documented):
    """As in the table of errors; an error of its traceback does not stand for it."""
    error = error_in(
        f"worker: {raised.__module__}.{raised.__qualname__}: f is not there\nForebay's traceback:\n"
        "forebay_state_api.errors.FencedError: x"
    )
    assert (type(error), str(error)) == (documented, "f is not there")


def test_an_error_of_a_package_with_a_like_name_is_not_one_of_forebay():
    assert error_in("forebay_jobs.errors.PriceError: no price") is None


@pytest.mark.parametrize(
    "spark", [" SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nx", ""]
)
def test_a_databases_sqlstate_does_not_end_the_text(spark):
    message = "f (operator 'u') raised Error: duplicate, SQLSTATE: 23505\n  File \"f.py\", line 1"
    assert str(error_in(f"forebay_state_api.errors.FunctionError: {message}\n{spark}")) == message


def test_forebays_traceback_is_a_note():
    error = error_in(
        "forebay_state_api.errors.StorageError: gone\nForebay's traceback:\nTraceback\n  x\n"
        "\tat o.B(X)"
    )
    assert str(error) == "gone"
    assert error.__notes__ == ["Forebay's traceback:\nTraceback\n  x"]


def test_a_text_without_an_error_of_forebay_has_none():
    assert error_in("[DIVIDE_BY_ZERO] Division by zero") is None


SOURCES = (
    "assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] "
    "sources requested by the query. Cannot continue."
)


def test_other_sources_than_those_of_the_checkpoint_are_ticks():
    error = why(Exception(SOURCES))
    assert type(error) is ConfigurationError
    assert "the checkpoint has 1 sources, and the query 2" in str(error)
    assert "forebay ticks CHECKPOINT" in str(error)
