"""The driver's text for an error in a worker has the file and line of user code.

The text of each method is the harness's too, in ``tests/test_users_lines.py``; how Spark shortens
texts does not depend on the method. Calls for several rows and on threads fail as others do.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
from queue import SimpleQueue

import pytest
from pyspark import util
from pyspark.errors import StreamingQueryException

from forebay_spark_runtime import Batch, keyed, ordered_wait, why
from forebay_state_api import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError, FunctionError, Location

pytestmark = pytest.mark.spark

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
HIDING = hasattr(util, "handle_worker_exception") and "hide_traceback" in str(
    inspect.signature(util.handle_worker_exception)
)
"""Whether this pyspark can send an error without a traceback before it."""
TORN = '{"error": "cannot parse \\ud83d"}'


@pytest.fixture
def session(request, spark):
    spark.conf.set(SIMPLIFIED, request.param)
    yield spark
    spark.conf.unset(SIMPLIFIED)


def price(user):
    return {"b": 1}[user]  # the line


class Record(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    async def process_element(self, row, ctx):
        await self.n.async_value()
        yield row.user, price(row.user)


class Open(Record):
    def open(self, context):
        price("a")


class Timer(Record):
    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(ctx.timers.processing_time)

    def on_timer(self, time, ctx):
        price("a")


class Reducer(KeyedProcessFunction):
    def open(self, context):
        reducer = lambda a, b: price("a")
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", reducer, int))

    async def process_element(self, row, ctx):
        self.sum.async_add(1)
        self.sum.async_add(2)


async def asked(row, client):
    return price(row.user)


async def asked_together(rows, client):
    return [price(row.user) for row in rows]


def on_a_thread(row, client):
    return price(row.user)


@contextlib.contextmanager
def no_client():
    yield price("a")


def key_of(row):
    return price(row.user)


async def fine(row, client):
    return 1


def users(session):
    return session.createDataFrame([("a",)], "user string")


def in_keyed(function):
    return lambda session: keyed(users(session), "user", uid="u", parallelism=1).process(
        function, "user string, n long"
    )


def in_wait(fn, **options):
    return lambda session: ordered_wait(users(session), fn, "n long", **options)


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def failure(made):
    with pytest.raises(Exception, match="FunctionError") as caught:
        made.collect()
    return str(caught.value)


def shows_the_users_line(text):
    assert "raised KeyError: 'a'" in text
    shown = text[text.index("raised KeyError") :]
    assert f'File "{__file__}", line ' in shown
    assert 'return {"b": 1}[user]  # the line' in shown


@pytest.mark.parametrize(
    ("make", "session"),
    [
        pytest.param(in_keyed(Record()), "true", id="keyed-true"),
        pytest.param(in_keyed(Record()), "false", id="keyed-false"),
        pytest.param(in_wait(asked), "true", id="wait-true"),
        pytest.param(in_wait(asked), "false", id="wait-false", marks=pytest.mark.slow),
    ],
    indirect=["session"],
)
def test_the_driver_shows_the_users_line(session, make):
    shows_the_users_line(failure(make(session)))


@pytest.mark.parametrize("session", ["true", *slow("false")], indirect=True)
@pytest.mark.parametrize(
    "make",
    [
        in_wait(fine, resources=no_client),
        in_wait(fine, key=key_of),
        *slow(in_wait(asked_together, batch=Batch(2)), in_wait(on_a_thread)),
        *slow(*map(in_keyed, [Open(), Timer(), Reducer()])),
    ],
)
def test_so_it_does_for_other_functions(session, make):
    shows_the_users_line(failure(make(session)))


class Logged(logging.Handler):
    """Keeps the messages of a logger, which another thread logs."""

    def __init__(self, logger):
        super().__init__(logging.ERROR)
        self.messages = SimpleQueue()
        logging.getLogger(logger).addHandler(self)

    def emit(self, record):
        self.messages.put(record.getMessage())


@pytest.fixture
def logged():
    name = "forebay_spark_runtime.driver.query_listener"
    handler = Logged(name)
    yield handler
    logging.getLogger(name).removeHandler(handler)


def test_a_stream_begins_with_the_sentence_and_why_has_its_fields(stage, logged):
    """As documented in the reference; the exception of Spark has no cause."""
    stage.put({"user": "a"})
    result = keyed(stage.source(), "user", uid="u", parallelism=1).process(
        Record(), "user string, n long"
    )
    with pytest.raises(StreamingQueryException) as caught:
        stage.run(result)
    text = str(caught.value)
    assert caught.value.__cause__ is None
    sentence = (
        "Record.process_element (operator 'u', key 'a', batch 0, partition 0) raised KeyError"
    )
    if HIDING:
        begin = "thrown from the Python worker: forebay_state_api.errors.FunctionError: "
        assert begin + sentence in text
        assert text.index(sentence) < 350
    assert 'return {"b": 1}[user]  # the line' in text
    assert "phase_seconds" not in text  # names of figures, in the plan
    error = why(caught.value)
    assert type(error) is FunctionError
    assert str(error).startswith(sentence)
    assert str(error).endswith('return {"b": 1}[user]  # the line')
    assert error.location == Location(
        operator="u",
        function="Record.process_element",
        key="'a'",
        batch_id=0,
        partition="0",
    )
    assert f"failed: FunctionError: {error}" in logged.messages.get(timeout=60)
    assert logged.messages.empty()


class Both(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        yield row

    process_element2 = process_element1


def test_a_second_operator_of_a_uid_is_refused_with_the_cure(spark):
    def counted(df):
        return keyed(df, "user", uid="u", state_dir="state").process(
            Record(), "user string, n long"
        )

    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as user")
    for twice in (
        lambda: counted(counted(rows)),
        lambda: (
            keyed(counted(rows), "user", uid="v", state_dir="state")
            .connect(keyed(counted(rows), "user", uid="v", state_dir="state"))
            .process(Both(), "user string")
        ),
    ):
        with pytest.raises(ConfigurationError, match="operator 'u': the query has two operators"):
            twice()


async def tears(row, client):
    raise ValueError(json.loads(TORN)["error"])


@pytest.mark.parametrize("session", ["true", *slow("false")], indirect=True)
def test_half_a_character_in_an_error_reaches_the_driver_escaped(session):
    class Tears(Record):
        def process_element(self, row, ctx):
            raise ValueError(json.loads(TORN)["error"])

    for make in (in_keyed(Tears()), in_wait(tears)):
        assert "raised ValueError: cannot parse \\ud83d" in failure(make(session))


@pytest.mark.slow  # by default: arrow/test_rows_out.py, through which both go
def test_half_a_character_in_an_answer_or_a_row_is_escaped(spark):
    def torn(row, ctx):
        yield row.user, [{"text": json.loads(TORN)["error"]}]

    schema = "user string, seen array<struct<text: string>>"
    rows = keyed(users(spark), "user", uid="u", parallelism=1).process(torn, schema).collect()
    assert rows == [("a", [("cannot parse \\ud83d",)])]

    async def answered(row, client):
        return json.loads(TORN)["error"]

    assert ordered_wait(users(spark), answered, "x string").collect() == [
        ("a", "cannot parse \\ud83d")
    ]


def test_half_a_character_in_an_error_of_a_column_is_escaped(spark):
    failed = ordered_wait(users(spark), tears, "x string", on_error="column").first()
    assert failed.x is None
    assert (failed.error.type, failed.error.message) == ("ValueError", "cannot parse \\ud83d")
