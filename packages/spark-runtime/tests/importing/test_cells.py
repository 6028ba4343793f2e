"""Columns of Spark's state as cells."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.format.key_types import KeyType
from forebay_spark_runtime.importing.cells import (
    UnfitRowError,
    contents_of,
    contents_reader,
    keys_of,
)
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_processor.importing.declared_states import DeclaredStates

KEY = KeyType.of(str)
HOUR = StateTtlConfig(timedelta(hours=1))
HOUR_US = 3_600_000_000
VALUE = pa.struct({"n": pa.int64()})
USER_KEY = pa.struct({"k": pa.string()})


def stamped(kind):
    return pa.struct({"value": kind, "ttlExpirationMs": pa.int64()})


class Declares(KeyedProcessFunction):
    def __init__(self, *descriptors):
        self.descriptors = descriptors

    def open(self, context):
        for get, descriptor in self.descriptors:
            getattr(context, get)(descriptor)

    def process_element(self, row, ctx):
        raise AssertionError


def info(get, descriptor):
    function = Declares((get, descriptor))
    states = DeclaredStates.of(function, key=KEY, uid="counts", backend=HeapBackend).infos()
    return states[descriptor.name]


def value(ttl=None, value_type=int):
    return info("get_state", ValueStateDescriptor("s", value_type, ttl=ttl))


def listed(ttl=None):
    return info("get_list_state", ListStateDescriptor("s", int, ttl=ttl))


def mapped(ttl=None, key_type=str):
    return info("get_map_state", MapStateDescriptor("s", key_type, int, ttl=ttl))


def contents(state, kind, rows, ttl_us=None):
    return contents_of(contents_reader(state, kind, ttl_us), pa.array(rows, kind))


def test_a_value():
    assert contents(value(), VALUE, [{"n": 1}, {"n": 2}]) == [1, 2]


def test_a_value_with_a_ttl_was_written_that_long_before_it_expires():
    rows = [{"value": {"n": 1}, "ttlExpirationMs": 7_200_000}]
    assert contents(value(HOUR), stamped(VALUE), rows, HOUR_US) == [(HOUR_US, 1)]


def test_a_list():
    rows = [[{"n": 1}, {"n": 2}], [], [{"n": 3}]]
    assert contents(listed(), pa.list_(VALUE), rows) == [[1, 2], [], [3]]


def test_each_element_of_a_list_has_its_own_time():
    row = [{"value": {"n": n}, "ttlExpirationMs": 3_600_000 + n} for n in (1, 2)]
    kind = pa.list_(stamped(VALUE))
    assert contents(listed(HOUR), kind, [row], HOUR_US) == [[(1_000, 1), (2_000, 2)]]


def test_a_map():
    rows = [[({"k": "a"}, {"n": 1}), ({"k": "b"}, {"n": 2})], [({"k": "a"}, {"n": 3})]]
    found = contents(mapped(), pa.map_(USER_KEY, VALUE), rows)
    assert found == [{"a": 1, "b": 2}, {"a": 3}]


def test_a_map_is_stored_by_the_addresses_of_its_keys():
    state = mapped(key_type=float)
    kind = pa.map_(pa.struct({"k": pa.float64()}), VALUE)
    found = contents(state, kind, [[({"k": 0.5}, {"n": 1})]])
    address = state.spec.user_key.address
    assert found == [{0.5 if address is None else address(0.5): 1}]


def test_each_entry_of_a_map_has_its_own_time():
    kind = pa.map_(USER_KEY, stamped(VALUE))
    row = [({"k": "a"}, {"value": {"n": 1}, "ttlExpirationMs": 3_600_001})]
    assert contents(mapped(HOUR), kind, [row], HOUR_US) == [{"a": (1_000, 1)}]


def test_a_slice_of_a_batch_is_read_alone():
    kind = pa.list_(VALUE)
    column = pa.array([[{"n": 1}], [{"n": 2}, {"n": 3}]], kind).slice(1)
    assert contents_of(contents_reader(listed(), kind, None), column) == [[2, 3]]


@pytest.mark.parametrize(
    ("state", "kind", "rows", "reason"),
    [
        (value(), VALUE, [{"n": 1}, {"n": None}], "int"),
        (listed(), pa.list_(VALUE), [[{"n": 1}], [{"n": 2}, {"n": None}]], "int"),
        (
            value(value_type="struct<n: long>"),
            pa.struct({"n": pa.string()}),
            [{"n": None}, {"n": "x"}],
            "n is a str, not int",
        ),
    ],
)
def test_the_first_row_that_does_not_fit_is_named(state, kind, rows, reason):
    with pytest.raises(UnfitRowError, match=reason) as caught:
        contents(state, kind, rows)
    assert caught.value.position == 1


def test_a_time_that_python_cannot_represent_is_named():
    kind = pa.struct({"at": pa.timestamp("us", "UTC")})
    state = value(value_type="struct<at: timestamp>")
    with pytest.raises(UnfitRowError, match="outside the years 1 to 9999") as caught:
        contents(state, kind, [{"at": 0}, {"at": 1 << 62}])
    assert caught.value.position == 1


def struct(**columns):
    return pa.StructArray.from_arrays([*columns.values()], names=[*columns])


def test_keys_are_bare_values_or_tuples():
    users = pa.array(["ann", "bob"])
    assert keys_of(struct(user=users)) == ["ann", "bob"]
    assert keys_of(struct(user=users, n=pa.array([1, 2]))) == [("ann", 1), ("bob", 2)]


def test_keys_have_one_form():
    prices = pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2))
    assert [str(key) for key in keys_of(struct(price=prices))] == ["1.5", "2"]
    assert str(keys_of(struct(x=pa.array([-0.0])))[0]) == "0.0"


@pytest.mark.parametrize(
    ("column", "what"), [(pa.array(["a", None]), "null"), (pa.array([1.0, float("nan")]), "NaN")]
)
def test_a_key_that_cannot_be_is_named(column, what):
    with pytest.raises(UnfitRowError, match=f"the key column 'user' is {what}") as caught:
        keys_of(struct(user=column))
    assert caught.value.position == 1
