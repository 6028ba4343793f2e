"""The running reduction: its forms, its operator state, and the function's name in errors."""

from __future__ import annotations

import functools
from typing import NamedTuple

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from forebay_spark_runtime.keyed_operator.reduce import running_reduce
from forebay_state_api import (
    CheckpointedFunction,
    FunctionError,
    ListStateDescriptor,
    ReduceFunction,
)
from forebay_state_api.errors import ConfigurationError, OutputSchemaError

SCHEMA = StructType().add("user", StringType()).add("n", LongType())
TWO_NAMES = StructType().add("\u00b5g", LongType()).add("\u03bcg", LongType())
CALLS = ListStateDescriptor("calls", int)


class Row(NamedTuple):
    user: str
    n: int


def added(first, second):
    return first.user, first.n + second.n


async def added_later(first, second):
    return first.user, first.n + second.n


class Called:
    async def __call__(self, first, second):
        return {"n": first.n + second.n, "user": first.user}


class Checkpointed(ReduceFunction, CheckpointedFunction):
    """Adds the number of its calls, over all micro-batches."""

    def initialize_state(self, context):
        self.state = context.operator_state_store.get_list_state(CALLS)
        self.calls = sum(self.state.get())

    def snapshot_state(self, context):
        self.state.update([self.calls])

    def reduce(self, first, second):
        self.calls += 1
        return first.user, first.n + second.n + 100 * self.calls


@pytest.mark.parametrize("fn", [added, added_later, functools.partial(added_later), Called()])
def test_each_row_gives_the_rows_so_far(harness, fn):
    made = harness(running_reduce(fn, SCHEMA, "u"), "user")
    rows = [Row("a", 1), Row("b", 5), Row("a", 2)]
    assert sorted(made.process(rows)) == [("a", 1), ("a", 3), ("b", 5)]
    made.restart(parallelism=3)
    assert made.process([Row("a", 4)]) == [("a", 7)]


def test_operator_state_is_that_of_the_function(harness):
    made = harness(running_reduce(Checkpointed(), SCHEMA, "u"), "user")
    assert made.process([Row("a", 0), Row("a", 0)])[-1] == ("a", 100)
    assert made.process([Row("a", 0)]) == [("a", 300)]


def yielding(first, second):
    yield first


async def yielding_later(first, second):
    yield first


class Yielding(ReduceFunction):
    def reduce(self, first, second):
        yield first


@pytest.mark.parametrize("fn", [yielding, yielding_later, Yielding(), functools.partial(yielding)])
def test_a_generator_is_refused(fn):
    with pytest.raises(ConfigurationError, match="is a generator: return the row"):
        running_reduce(fn, SCHEMA, "u")


def failing(first, second):
    return 1 / 0


class Failing(ReduceFunction):
    async def reduce(self, first, second):
        return 1 / 0


@pytest.mark.parametrize("fn", [failing, Failing()])
def test_errors_name_the_function(harness, fn):
    name = getattr(fn, "__name__", "Failing")
    with pytest.raises(FunctionError, match=rf"^{name}\.reduce \(operator .*raised ZeroDivision"):
        harness(running_reduce(fn, SCHEMA, "u"), "user").process([Row("a", 1)] * 2)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("a", "x"), "column 'n' is declared bigint; wrong gave str 'x' in the row ('a', 'x'): "),
        (("a",), "wrong emitted a row of 1 values, ('a',); the schema has 2 columns: user, n"),
        (None, "wrong emitted NoneType None; a row is a tuple"),
    ],
)
def test_a_row_that_does_not_fit_is_named(harness, row, says):
    def wrong(first, second):
        return row

    wrong.__qualname__ = "wrong"
    made = harness(running_reduce(wrong, SCHEMA, "u"), "user")
    with pytest.raises(OutputSchemaError) as caught:
        made.process([Row("a", 1)] * 2)
    assert says in str(caught.value)


@pytest.mark.parametrize("kind", [VectorUDT(), ArrayType(VectorUDT()), TWO_NAMES])
def test_a_column_that_state_cannot_hold_is_refused_by_name(kind):
    says = r"operator 'u': reduce keeps rows .* column 'v' of type .* cannot be kept: .*Leave it"
    with pytest.raises(ConfigurationError, match=says):
        running_reduce(added, StructType().add("user", StringType()).add("v", kind), "u")
