"""The harness sorts rows and copies functions as Spark does."""

from __future__ import annotations

import enum
import sys
from datetime import date, datetime
from decimal import Decimal

import pytest
from pyspark import cloudpickle

from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import ConfigurationError, KeyedProcessFunction, ValueStateDescriptor

NAN = float("nan")
DAY = date(2024, 3, 31)
MIDNIGHT = datetime.fromisoformat("2024-03-31")


def echo(row, ctx):
    yield (row.o,)


def ordered(values):
    with FunctionHarness(echo, "k", order_by="o") as harness:
        return [one for (one,) in harness.process([{"k": "a", "o": value} for value in values])]


@pytest.mark.parametrize(
    "values",
    [
        [float("-inf"), 2.0, NAN, None],
        [1.0, 2.0, 3.0, NAN],
        [Decimal(1), Decimal("NaN"), None],
        [2**53, 2.0**53 + 2, 2**53 + 3],
        [Decimal("0.1"), 0.1, Decimal("0.2")],
        ["A", "a", "ä", "日"],
        [b"", b"\0", b"a"],
        [False, True, None],
        [date(2024, 3, 30), MIDNIGHT, MIDNIGHT.replace(hour=1)],
        [datetime.fromisoformat(f"2024-03-31T0{hour}:30") for hour in (1, 2, 3)],
    ],
    ids=str,
)
def test_rows_are_sorted_with_nan_and_nulls_last(values):
    turns = [values[at:] + values[:at] for at in range(len(values))]
    for given in (*turns, values[::-1]):
        assert list(map(str, ordered(given))) == list(map(str, values))


def test_equal_values_keep_the_order_of_the_rows():
    assert list(map(str, ordered([0.0, -0.0, 0]))) == ["0.0", "-0.0", "0"]
    assert ordered([MIDNIGHT, DAY]) == [MIDNIGHT, DAY]


@pytest.mark.parametrize("value", [[1], {"a": 1}, (1, 2)], ids=str)
def test_values_that_spark_does_not_order_by(value):
    says = f"'test': rows cannot be ordered by o: a {type(value).__name__} has no order"
    with pytest.raises(ConfigurationError, match=says):
        ordered([value, value])


class Color(enum.Enum):
    RED = 1
    ROUGE = 1  # noqa: PIE796 - a second name
    BLUE = 2


class May(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3


class Keep(KeyedProcessFunction):
    def __init__(self, kind, value):
        self.kind, self.value = kind, value

    def open(self, context):
        self.kept = context.get_state(ValueStateDescriptor("kept", self.kind))

    def process_element(self, row, ctx):
        before = self.kept.value()
        self.kept.update(self.value)
        yield before, self.value.name


@pytest.fixture
def _by_value():
    """Classes of this module travel by value, as those of a script do."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("_by_value")
@pytest.mark.parametrize("value", [Color.ROUGE, Color.BLUE, May.READ, May.BOTH])
def test_enumerations_of_a_script_with_second_names(value):
    kept = ValueStateDescriptor("kept", type(value))
    with FunctionHarness(Keep(type(value), value), "k") as harness:
        assert harness.process([{"k": "a"}]) == [(None, value.name)]
        harness.restart()
        assert harness.process([{"k": "a"}]) == [(value, value.name)]
        assert harness.state(kept, "a") is value


def refuse():
    raise ImportError("no such module in a worker")


class Stranger(KeyedProcessFunction):
    def __reduce__(self):
        return refuse, ()

    def process_element(self, row, ctx):
        yield (1,)


def test_a_function_that_cannot_be_unpickled():
    says = "operator 'test': Stranger arrived in a worker and cannot be unpickled there: ImportErr"
    with (
        FunctionHarness(Stranger(), "k") as harness,
        pytest.raises(ConfigurationError, match=says),
    ):
        harness.process([{"k": "a"}])
