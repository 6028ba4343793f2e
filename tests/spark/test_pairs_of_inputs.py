"""Pairs of types in which two connected inputs have their keys and their order, against a model.

All pairs are columns of one key, or of one ``order_by``, and so take one query. The model is
Python's: a row's key is made of its own input's values, and values are compared exactly.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from inspect import signature

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay_spark_runtime import keyed
from forebay_state_api import (
    ConfigurationError,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.keys import canonical_key, key_group_of, subtask_of
from forebay_state_processor.reading import open_state

pytestmark = pytest.mark.spark

ZONE = "Europe/Berlin"
NOON = datetime(2024, 3, 31, 12, tzinfo=UTC)
GAP = [datetime.fromisoformat(f"2024-03-31T0{hour}:30") for hour in (1, 2, 3)]
"""Times of which Berlin's clocks skipped the second."""
OVERLAP = [datetime(2024, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1)]
"""Instants that Berlin's clocks show alike."""
SINGLE = struct.unpack("f", struct.pack("f", 0.1))[0]
NAN, INFINITY = float("nan"), float("inf")


def decimals(precision, scale, *texts):
    return T.DecimalType(precision, scale), [Decimal(text) for text in texts]


INTEGERS = [
    (T.ByteType(), [0, 5, 127, -128]),
    (T.ShortType(), [0, 5, 127, 32767]),
    (T.IntegerType(), [0, 5, 32767, 2**31 - 1]),
    (T.LongType(), [0, 5, 2**31 - 1, 2**53, 2**53 + 1, 2**63 - 1]),
]
DECIMALS = [
    decimals(4, 1, "0", "5", "5.1", "-0.5"),
    decimals(10, 2, "0", "5.00", "5.1", "5.12"),
    decimals(38, 0, "0", "5", "6", "9" * 38),
    decimals(38, 10, "0", "5", "5.1", "5.123456789", "9" * 28),
    decimals(38, 18, "0", "5", "5.1", "5.2", "5.1234567890123"),
    decimals(38, 38, "0", "0.5", "0." + "0" * 37 + "1"),
]
FLOATS = [
    (T.FloatType(), [0.0, 5.0, -0.0, SINGLE, INFINITY]),
    (T.DoubleType(), [-0.0, 5.0, 0.0, 0.1, SINGLE, -INFINITY]),
]
OTHERS = [
    [(T.StringType(), ["a", "A", "ä", "a ", ""])],
    [(T.BinaryType(), [b"a", b"", b"\0"])],
    [(T.BooleanType(), [True, False])],
    [(T.DateType(), [date(2024, 3, 31), date(1, 1, 1)])],
    [(T.TimestampType(), [NOON, *OVERLAP])],
    [(T.TimestampNTZType(), [NOON.replace(tzinfo=None), *GAP])],
]
HAS_COLLATIONS = "collation" in signature(T.StringType).parameters
COLLATED = (T.StringType(*["UTF8_LCASE"] * HAS_COLLATIONS), ["b", "A", "B", "a"])
FAMILIES = [INTEGERS, DECIMALS, FLOATS, *OTHERS]
"""Types of columns that can be a key together, and values; the first value is equal in all."""


def schema(kinds):
    return T.StructType([T.StructField(f"c{n}", kind) for n, kind in enumerate(kinds)])


def rows_of(columns):
    """Return a row of first values, and for each other value the row in which only it differs."""
    base = tuple(values[0] for values in columns)
    changed = [
        (*base[:n], value, *base[n + 1 :]) for n, values in enumerate(columns) for value in values
    ]
    return [base, *changed]


class Both(KeyedCoProcessFunction):
    """Counts the rows of each key, and shows it with the key of the row's own columns."""

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def seen(self, row, context):
        self.count.update(self.count.value() + 1)
        own = repr(canonical_key(tuple(row)))
        yield repr(context.current_key), own, context.subtask_index, self.count.value()

    def process_element1(self, row, context):
        return self.seen(row, context)

    def process_element2(self, row, context):
        return self.seen(row, context)


SEEN = "key string, own string, subtask long, n long"


def opposite(family):
    """Pair the types of a family, the first with the last and so on."""
    return zip(family, family[::-1], strict=True)


def every(family):
    return itertools.product(family, repeat=2)


@pytest.mark.parametrize("paired", [opposite, pytest.param(every, marks=pytest.mark.slow)])
def test_a_row_s_key_is_its_own_input_s(spark, paired):
    pairs = [pair for family in FAMILIES for pair in paired(family)]
    sides = list(zip(*pairs, strict=True))
    given = [rows_of([values for _, values in side]) for side in sides]
    inputs = [
        spark.createDataFrame(rows, schema([kind for kind, _ in side]))
        for rows, side in zip(given, sides, strict=True)
    ]
    names = inputs[0].columns
    first, second = (keyed(df, *names, uid="u", parallelism=2) for df in inputs)
    found = [tuple(row) for row in first.connect(second).process(Both(), SEEN).collect()]

    expected = Counter()
    for key in map(canonical_key, itertools.chain(*given)):
        expected[repr(key), subtask_of(key_group_of(key, 128), 2, 128)] += 1
    assert all(key == own for key, own, _, _ in found)
    assert Counter((key, subtask) for key, _, subtask, _ in found) == expected
    assert Counter((key, n) for key, _, _, n in found) == Counter(
        (key, n + 1) for (key, _), count in expected.items() for n in range(count)
    )
    assert len(expected) < sum(map(len, given))  # some keys are in both inputs


@pytest.mark.parametrize("wrong", [(0, "null"), (1, "null"), (1, "NaN")], ids=str)
def test_a_row_without_a_key_is_named_with_its_own_input(spark, wrong):
    side, what = wrong
    values = [[1.5, 2.5], [1.5, 2.5]]
    values[side][1] = None if what == "null" else NAN
    sides = []
    for number, (kind, _) in enumerate(FLOATS):
        fields = T.StructType().add(f"k{number}", kind)
        df = spark.createDataFrame([(value,) for value in values[number]], fields)
        sides.append(keyed(df, f"k{number}", uid="u", parallelism=1))
    shown = {"null": "None", "NaN": "nan"}[what]
    says = f"key column 'k{side}' is {what} in record .*: {{'k{side}': {shown}}}"
    with pytest.raises(PythonException, match=says):
        sides[0].connect(sides[1]).process(Both(), SEEN).collect()


def test_keys_of_two_families_are_refused(spark):
    """Spark's union would convert one of them, and lose digits or an hour of a zone."""
    kinds = [family[-1][0] for family in FAMILIES]
    df = spark.createDataFrame([], schema(kinds))
    sides = [keyed(df, name, uid="u") for name in df.columns]
    for first, second in itertools.permutations(sides, 2):
        with pytest.raises(ConfigurationError, match=r"of the same kinds, .* Cast one of them"):
            first.connect(second)


ORDERED = [
    *itertools.product(INTEGERS, repeat=2),
    *itertools.product(FLOATS, repeat=2),
    *itertools.product(INTEGERS[:3], FLOATS),
    *itertools.product(FLOATS, INTEGERS[:3]),
    *itertools.product(DECIMALS, repeat=2),
    *itertools.product(DECIMALS, INTEGERS),
    (INTEGERS[3], DECIMALS[5]),
    *itertools.product([OTHERS[3][0], OTHERS[5][0]], repeat=2),
    *((other[0], other[0]) for other in OTHERS),
    (COLLATED, COLLATED),
    (
        (T.DayTimeIntervalType(0, 1), [timedelta(hours=5), timedelta(hours=-7)]),
        (T.DayTimeIntervalType(0, 3), [timedelta(microseconds=5), timedelta(hours=5)]),
    ),
]
"""Pairs of types that `order_by` accepts."""


def exactly(value):
    """Return a sort key of one column: Python compares numbers of all types exactly."""
    if value is None:
        return (2,)
    if value != value:  # NaN
        return (1,)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.fromisoformat(value.isoformat())
    return 0, value.encode() if isinstance(value, str) else value


class Order(KeyedCoProcessFunction):
    def process_element1(self, row, context):
        yield row.pair, 0, row.row

    def process_element2(self, row, context):
        yield row.pair, 1, row.row


def one_pair_a_row(side, columns):
    """Return rows that have a value in the column of their pair alone, and are null elsewhere."""
    rows = []
    for pair, (kind, values) in enumerate(columns):
        special = [NAN, None] if "Float" in str(kind) or "Double" in str(kind) else [None]
        for value in [*values[::-1], *special]:
            row = [None] * len(columns)
            row[pair] = value
            rows.append((pair, len(rows), *row))
    return rows


def test_rows_of_two_inputs_are_ordered_by_their_exact_values(spark):
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    try:
        given, sides = [], []
        for side, columns in enumerate(zip(*ORDERED, strict=True)):
            rows = one_pair_a_row(side, columns)
            kinds = [T.LongType(), T.LongType(), *(kind for kind, _ in columns)]
            names = ["pair", "row", *(f"c{n}" for n in range(len(columns)))]
            df = spark.createDataFrame(rows, T.StructType(list(map(T.StructField, names, kinds))))
            by = [names[0], *names[2:]]
            given.append(rows)
            sides.append(
                keyed(df.withColumn("k", F.lit(1)), "k", uid="u", parallelism=1, order_by=by)
            )
        out = sides[0].connect(sides[1]).process(Order(), "pair long, side long, row long")
        found = [tuple(row) for row in out.collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(found, key=lambda one: one[1:]) == [
        (row[0], side, row[1]) for side, rows in enumerate(given) for row in rows
    ]
    for pair, ours in itertools.groupby(found, key=lambda one: one[0]):
        values = [given[side][row][2 + pair] for _, side, row in ours]
        assert list(map(exactly, values)) == sorted(map(exactly, values)), ORDERED[pair]


class Lists(KeyedCoProcessFunction):
    def open(self, context):
        self.seen = context.get_list_state(ListStateDescriptor("seen", str))

    def process_element1(self, row, context):
        self.seen.add(str(row.k))
        yield str(row.k), ",".join(self.seen)

    process_element2 = process_element1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_decimal_keys_keep_their_own_state_over_a_rescale(stage, backend):
    def run(parallelism):
        sides = [
            keyed(
                stage.source(f"k {kind}", folder=stage.folder / kind),
                "k",
                uid="both",
                query="q",
                state_dir=stage.state,
                parallelism=parallelism,
                backend=backend,
            )
            for kind in ("decimal(38,0)", "decimal(38,18)")
        ]
        stage.run(sides[0].connect(sides[1]).process(Lists(), "k string, seen string"))

    for parallelism in (2, 1):
        stage.put({"k": 5}, {"k": 6}, into=stage.folder / "decimal(38,0)")
        stage.put({"k": 5.1}, {"k": 5.2}, {"k": 6}, into=stage.folder / "decimal(38,18)")
        run(parallelism)
    with open_state(str(stage.state), query="q", uid="both", provisional=True) as snapshot:
        found = {row.key: list(row.value) for row in snapshot.scan("seen")}
        assert {key: snapshot.get("seen", key) for key in found} == found
    assert {str(key): [float(one) for one in seen] for key, seen in found.items()} == {
        "5": [5, 5],
        "5.1": [5.1, 5.1],
        "5.2": [5.2, 5.2],
        "6": [6, 6, 6, 6],
    }
