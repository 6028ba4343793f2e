"""The text of an error that ends a task, as Spark's worker sends it to the driver."""

from __future__ import annotations

import json
import os
import sys
import traceback

import pytest
from pyspark import TaskContext

from forebay_spark_runtime.worker_process.task_errors import ready_for_spark
from forebay_state_api.errors import (
    CorruptStateError,
    ForebayError,
    FunctionError,
    OutputSchemaError,
    StorageError,
)

TORN = json.loads('"\\ud83d"')
HIDES = "SPARK_HIDE_TRACEBACK"


@pytest.fixture
def in_a_worker(monkeypatch):
    """Makes the process look like a worker of Spark that runs a task."""
    monkeypatch.setattr(TaskContext, "get", object)
    monkeypatch.setenv(HIDES, "")
    return monkeypatch


def sent(raise_it):
    """Return the text that pyspark 4.3 sends, and the error."""

    @ready_for_spark
    def run(job, batches):
        yield from batches
        raise_it()

    try:
        list(run(None, iter([])))
    except Exception as error:  # noqa: BLE001 - what Spark's worker catches
        if os.environ.get(HIDES):
            return "".join(traceback.format_exception_only(error)), error
        return "".join(traceback.format_exception(*sys.exc_info())), error
    raise AssertionError


def a_function_fails():
    try:
        int("a")
    except ValueError as error:
        raise FunctionError("F.process_element (operator 'u') raised ValueError") from error


def storage_fails():
    try:
        open("/nowhere/at/all")  # noqa: PTH123, SIM115 - it fails
    except OSError as error:
        raise StorageError("s3://bucket cannot be reached") from error


@pytest.mark.usefixtures("in_a_worker")
def test_the_text_begins_with_the_sentence_and_has_the_users_lines():
    text, error = sent(a_function_fails)
    first, *lines = text.splitlines()
    assert first == (
        "forebay_state_api.errors.FunctionError: F.process_element (operator 'u') raised ValueError"
    )
    assert "in a_function_fails" in text
    assert not any("forebay_spark_runtime" in line for line in lines)
    assert type(error) is FunctionError


@pytest.mark.usefixtures("in_a_worker")
def test_a_fault_outside_the_job_has_the_traceback_below_the_sentence():
    text, _ = sent(storage_fails)
    assert text.startswith(
        "forebay_state_api.errors.StorageError: s3://bucket cannot be reached\n"
        "Forebay's traceback:\nTraceback"
    )
    assert "FileNotFoundError" in text
    assert "in storage_fails" in text


def test_outside_a_worker_no_variable_is_set(monkeypatch):
    monkeypatch.delenv(HIDES, raising=False)
    text, _ = sent(a_function_fails)
    assert HIDES not in os.environ
    # What pyspark before 4.0 sends: the worker's own frames, then the sentence.
    assert text.startswith("Traceback")
    assert "forebay_engine" not in text
    assert "The above exception" not in text


@pytest.mark.usefixtures("in_a_worker")
@pytest.mark.parametrize("kind", [FunctionError, OutputSchemaError, CorruptStateError])
def test_text_and_notes_can_be_encoded(kind):
    def fails():
        error = kind(f"the value {TORN}")
        error.add_note(f"in the row {TORN}")
        raise error

    text, _ = sent(fails)
    text.encode()
    assert "the value \\ud83d" in text
    assert "in the row \\ud83d" in text


@pytest.mark.usefixtures("in_a_worker")
def test_a_fault_of_ours_keeps_its_traceback():
    def fails():
        raise ValueError("a bug")

    text, error = sent(fails)
    assert type(error) is ValueError
    assert text.startswith("Traceback")
    assert "in fails" in text


@pytest.mark.usefixtures("in_a_worker")
def test_a_fault_of_ours_that_cannot_be_encoded_is_escaped():
    def fails():
        raise ValueError(TORN)

    text, error = sent(fails)
    assert type(error) is ForebayError
    assert "ValueError: \\ud83d" in text


@pytest.mark.usefixtures("in_a_worker")
def test_an_interrupted_function_says_where():
    def fails():
        error = KeyboardInterrupt()
        error.add_note("in F.process_element (operator 'u', key 'a', batch 0, partition 1)")
        raise error

    text, error = sent(fails)
    assert type(error) is FunctionError
    assert text.endswith(
        "got the signal SIGINT (Ctrl-C), in F.process_element (operator 'u', key 'a', batch 0, "
        "partition 1)\n"
    )
