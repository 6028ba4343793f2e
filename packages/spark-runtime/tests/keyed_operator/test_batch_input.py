"""Reading Arrow batches into a subtask."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

import attrs
import pyarrow as pa
import pytest

from forebay_engine.execution.identity import SubtaskIdentity
from forebay_engine.timers.event_times import EventTimeBounds
from forebay_engine.versions.format.epochs import RunIdentity
from forebay_spark_runtime.arrow.rows_in import SLICE_ROWS
from forebay_spark_runtime.keyed_operator.batch_input import BatchInput, KeyedInputLayout
from forebay_spark_runtime.keyed_operator.plan import PULSE, TIME_SHIFT, HiddenColumns
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import canonical_key


class Taken:
    """Records the calls that a subtask would get."""

    def __init__(self):
        self.calls = []

    def process(self, rows, keys, groups, side=0):
        self.calls.append((list(rows), list(keys), list(groups), side))

    def process_broadcast(self, rows):
        self.calls.append(rows)

    @property
    def rows(self):
        return [row for rows, *_ in self.calls for row in rows]

    @property
    def keys(self):
        return [key for _, keys, *_ in self.calls for key in keys]


def layout(names=("user", "n"), keys=(0,), order=()):
    names = tuple(names)
    return KeyedInputLayout(
        uid="u",
        names=(names,),
        keys=(tuple(keys),),
        order=(tuple(order),),
    )


KINDS = (pa.string(), pa.int64())
GROUPS = 4096


def task(subtask):
    return SubtaskIdentity(
        uid="u",
        run=RunIdentity(keyed_uuid="r", app_id=None, run_id=None),
        batch_id=0,
        subtask=subtask,
        parallelism=2,
        max_parallelism=2 * GROUPS,
        attempt_id=1,
    )


def batch(rows, subtask=1, kinds=KINDS):
    columns = [
        pa.array(list(column), kind)
        for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    hidden = {
        HiddenColumns.TIME_AND_GROUP: pa.array(
            [77 << TIME_SHIFT | GROUPS * subtask + n for n in range(len(rows))], pa.int64()
        ),
    }
    names = ["user", "n", "x"][: len(columns)]
    return pa.RecordBatch.from_arrays([*columns, *hidden.values()], [*names, *hidden])


NOON = datetime(2024, 7, 1, 12, tzinfo=UTC)
ROWS = [("ann", 3), ("bob", 1), ("ann", 2)]


def test_rows_keys_and_groups():
    taken = Taken()
    batch_input = BatchInput(layout(), task(1))
    batch_input.feed(batch(ROWS), taken)
    assert taken.calls == [(ROWS, ["ann", "bob", "ann"], [GROUPS, GROUPS + 1, GROUPS + 2], 0)]
    assert taken.rows[0].user == "ann"
    assert batch_input.now_us(batch(ROWS)) == 77_000
    assert batch_input.now_us(None) == NO_TIME


def test_several_key_columns_are_tuples_in_the_order_asked_for():
    taken = Taken()
    BatchInput(layout(keys=(1, 0)), task(1)).feed(batch(ROWS), taken)
    assert taken.keys == [(3, "ann"), (1, "bob"), (2, "ann")]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([-0.0, 1.5], pa.float64()),
        ([-0.0, 0.5], pa.float32()),
        ([Decimal("1.00"), Decimal("10.00"), Decimal("0.00")], pa.decimal128(6, 2)),
        ([Decimal(10), Decimal(0)], pa.decimal128(6, 0)),
        ([NOON], pa.timestamp("us", "Asia/Tokyo")),
        (["a", ""], pa.string()),
    ],
    ids=str,
)
def test_keys_have_the_form_in_which_state_is_kept_under_them(values, kind):
    taken = Taken()
    rows = [(value, 0) for value in values]
    BatchInput(layout(), task(1)).feed(batch(rows, kinds=(kind, pa.int64())), taken)
    assert list(map(str, taken.keys)) == [str(canonical_key(row.user)) for row in taken.rows]
    assert [row.user for row in taken.rows] == values


def test_names_are_the_user_s_whatever_they_were_carried_as():
    taken = Taken()
    BatchInput(layout(names=("the user", "a.b")), task(1)).feed(batch(ROWS), taken)
    assert getattr(taken.rows[0], "a.b") == 3


def test_large_batches_go_in_slices():
    taken = Taken()
    rows = [("ann", n) for n in range(2 * SLICE_ROWS + 1)]
    BatchInput(layout(), task(1)).feed(batch(rows), taken)
    assert [len(call[0]) for call in taken.calls] == [SLICE_ROWS, SLICE_ROWS, 1]
    assert taken.rows == rows


def test_rows_are_counted_by_key_group():
    batch_input = BatchInput(layout(), task(1))
    assert batch_input.group_rows() == []
    batch_input.feed(batch(ROWS), Taken())
    batch_input.feed(batch(ROWS[:2]), Taken())
    rows = batch_input.group_rows()
    assert (len(rows), rows[:4], sum(rows)) == (GROUPS, [2, 2, 1, 0], 5)


def test_ordering_goes_across_batches():
    batch_input = BatchInput(layout(order=(1,)), task(1))
    batches = [batch([("ann", 5), ("bob", 2)]), batch([("ann", 1), ("cyd", 2)])]
    batches[1] = with_pulse(batches[1], 1)
    rest = iter(batches[1:])
    ordered = [
        tuple(row.values())[:2]
        for one in batch_input.ordered(batches[0], rest)
        for row in one.to_pylist()
    ]
    assert ordered == [("ann", 1), ("bob", 2), ("cyd", 2), ("ann", 5)]
    assert list(batch_input.ordered(None, iter(()))) == []


def with_pulse(given, position, group=GROUPS):
    """Return a batch with the pulse's row of subtask 1, or of the one that has ``group``."""
    hidden = pa.array([77 << TIME_SHIFT | PULSE | group], pa.int64())
    users = given.schema.types[:-1]
    pulse = pa.RecordBatch.from_arrays(
        [*(pa.nulls(1, kind) for kind in users), hidden], given.schema.names
    )
    parts = [given.slice(0, position), pulse, given.slice(position)]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


@pytest.mark.parametrize("position", [0, 1, 3])
def test_the_pulse_brings_the_time_and_is_no_row(position):
    taken, batch_input = Taken(), BatchInput(layout(), task(1))
    given = with_pulse(batch(ROWS), position)
    assert batch_input.now_us(given) == 77_000
    for one in batch_input.ordered(given, iter(())):
        batch_input.feed(one, taken)
    assert (taken.rows, taken.keys) == (ROWS, ["ann", "bob", "ann"])
    assert sum(batch_input.group_rows()) == 3


def test_the_pulse_alone_is_no_batch():
    batch_input = BatchInput(layout(), task(1))
    given = with_pulse(batch(ROWS).slice(0, 0), 0)
    assert batch_input.now_us(given) == 77_000
    assert list(batch_input.ordered(given, iter(()))) == []


@pytest.mark.parametrize(
    "given", [lambda: batch(ROWS, subtask=1), lambda: with_pulse(batch(ROWS), 2)]
)
def test_rows_of_another_subtask(given):
    batch_input = BatchInput(layout(), task(0))
    with pytest.raises(ConfigurationError, match="rows of subtask 1 came to partition 0 instead"):
        list(batch_input.ordered(given(), iter(())))


def test_a_null_key_is_named_with_its_row():
    batch_input = BatchInput(layout(keys=(1, 0)), task(1))
    batch_input.feed(batch(ROWS), Taken())
    with pytest.raises(ConfigurationError) as caught:
        batch_input.feed(batch([("ann", 1), (None, 2)]), Taken())
    assert "key column 'user' is null in record 4 of" in str(caught.value)
    assert "{'user': None, 'n': 2}" in str(caught.value)


def test_a_nan_key():
    rows = [("ann", 1.0), ("bob", float("nan"))]
    with pytest.raises(ConfigurationError, match="key column 'n' is NaN in record 1"):
        BatchInput(layout(keys=(1,)), task(1)).feed(
            batch(rows, kinds=(pa.string(), pa.float64())), Taken()
        )


def with_days(days):
    rows = [("ann", 0)] * len(days)
    given = batch(rows)
    return given.set_column(1, "n", pa.array(days, pa.date32()))


def test_a_date_that_python_cannot_hold_is_named_with_its_row():
    batch_input = BatchInput(layout(), task(1))
    batch_input.feed(with_days([1, 2]), Taken())
    with pytest.raises(ConfigurationError) as caught:
        batch_input.feed(with_days([3] * SLICE_ROWS + [4, 5_000_000]), Taken())
    says = f"operator 'u', subtask 1: record {2 + SLICE_ROWS + 1} of the subtask's micro-batch"
    assert str(caught.value).startswith(f"{says} cannot be read: column 'n' (date32[day])")


def test_a_null_key_is_named_beside_a_date_that_python_cannot_hold():
    given = with_days([5_000_000]).set_column(0, "user", pa.array([None], pa.string()))
    with pytest.raises(ConfigurationError, match=r"key column 'user' is null .* 15659-07-15"):
        BatchInput(layout(), task(1)).feed(given, Taken())


LEFT = pa.struct([("k", pa.string()), ("n", pa.int64())])
RIGHT = pa.struct([("id", pa.string())])


def united(sides):
    """Return a batch of rows of two inputs; each row is a dict for its side."""
    rows = len(sides)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row if "k" in row else None for row in sides], LEFT),
            pa.array([row if "id" in row else None for row in sides], RIGHT),
            pa.array(range(rows), pa.int64()),
        ],
        [HiddenColumns.FIRST, HiddenColumns.SECOND, HiddenColumns.TIME_AND_GROUP],
    )


TWO = KeyedInputLayout(uid="u", names=(("k", "n"), ("id",)), keys=((0,), (0,)))


def test_two_inputs_keep_the_order_in_which_rows_came():
    taken = Taken()
    sides = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"id": "a"}, {"k": "c", "n": 3}, {"id": "b"}]
    BatchInput(TWO, task(0)).feed(united(sides), taken)
    assert taken.calls == [
        ([("a", 1), ("b", 2)], ["a", "b"], [0, 1], 0),
        ([("a",)], ["a"], [2], 1),
        ([("c", 3)], ["c"], [3], 0),
        ([("b",)], ["b"], [4], 1),
    ]
    assert taken.calls[1][0][0].id == "a"


def test_two_inputs_of_which_one_is_idle():
    given = with_pulse(united([{"id": "a"}, {"id": "b"}]), 2, group=0)
    assert fed(TWO, [given]) == [([("a",), ("b",)], ["a", "b"], [0, 1], 1)]


@pytest.mark.parametrize("row", [{"k": None, "n": 5}, {"id": None}], ids=str)
def test_a_null_key_of_two_inputs(row):
    says = rf"key column '{next(iter(row))}' is null in record 2 of .*{re.escape(str(row))}"
    with pytest.raises(ConfigurationError, match=says):
        BatchInput(TWO, task(0)).feed(united([{"k": "a", "n": 1}, {"id": "b"}, row]), Taken())


def test_a_nan_key_of_two_inputs():
    given = united([{"k": "a", "n": 1}, {"id": "b"}, {"id": "c"}])
    kind = pa.struct([("id", pa.float32())])
    values = pa.array([None, {"id": 1.0}, {"id": float("nan")}], kind)
    with pytest.raises(ConfigurationError, match="key column 'id' is NaN in record 2 of"):
        BatchInput(TWO, task(0)).feed(given.set_column(1, HiddenColumns.SECOND, values), Taken())


def test_the_keys_of_two_inputs_are_of_their_own_types():
    given = united([{"k": "a", "n": 0}, {"id": "b"}])
    for position, kind in enumerate([pa.decimal128(38, 0), pa.decimal128(38, 18)]):
        values = [None, None]
        values[position] = (Decimal("5.1") if position else Decimal(5),)
        column = pa.array(values, pa.struct([(f"k{position}", kind)]))
        given = given.set_column(position, given.schema.names[position], column)
    taken = Taken()
    BatchInput(attrs.evolve(TWO, names=(("k0",), ("k1",))), task(0)).feed(given, taken)
    assert list(map(str, taken.keys)) == ["5", "5.1"]


def test_two_inputs_are_sorted_together_in_the_type_that_holds_both():
    batches = [
        united([{"k": "a", "n": 2}, {"id": "b"}, {"k": "c", "n": None}]),
        united([{"k": "d", "n": 1}, {"id": "e"}]),
    ]
    for number, rests in enumerate(([1.5], [2.0])):
        rows = [None, *({"id": "b", "x": value} for value in rests)]
        rows += [None] * (batches[number].num_rows - len(rows))
        column = pa.array(rows, pa.struct([("id", pa.string()), ("x", pa.float32())]))
        batches[number] = batches[number].set_column(1, HiddenColumns.SECOND, column)
    two = attrs.evolve(
        TWO, names=(("k", "n"), ("id", "x")), order=((1,), (1,)), order_types=(pa.float64(),)
    )
    calls = fed(two, batches)
    values = [row[1] for rows, *_ in calls for row in rows]
    assert values == [1, 1.5, 2, 2.0, None]
    assert [side for *_, side in calls] == [0, 1, 0, 1, 0]


def test_a_date_of_two_inputs_that_python_cannot_hold():
    right = pa.StructArray.from_arrays(
        [pa.array(["a", "b", "c"]), pa.array([1, None, 5_000_000], pa.date32())],
        ["id", "day"],
        mask=pa.array([False, True, False]),
    )
    sides = united([{"id": "a"}, {"k": "b", "n": 1}, {"id": "c"}]).set_column(
        1, HiddenColumns.SECOND, right
    )
    two = attrs.evolve(TWO, names=(("k", "n"), ("id", "day")))
    with pytest.raises(ConfigurationError, match=r"record 2 of .* column 'day' .*15659-07-15"):
        BatchInput(two, task(0)).feed(sides, Taken())


RULES = [
    {"id": "b", "most": 10, "x": [1]},
    {"id": "a", "most": 9, "x": [2]},
    {"id": "a", "most": 9, "x": [1]},
    {"id": None, "most": None, "x": [0]},
    {"id": "b", "most": 10, "x": [1]},
]


def with_rules(keyed, rules):
    """Return a batch of the rows of a broadcast input, each before a keyed row if there is one."""
    sides = [*rules, *[{"k": key, "n": 0} for key in keyed]]
    kind = pa.struct([("id", pa.string()), ("most", pa.int64()), ("x", pa.list_(pa.int64()))])
    found = united(sides).set_column(
        1, HiddenColumns.SECOND, pa.array([row if "id" in row else None for row in sides], kind)
    )
    groups = pa.array([0] * len(sides), pa.int64())
    return found.set_column(2, HiddenColumns.TIME_AND_GROUP, groups)


def with_broadcast(*order):
    names = (("k", "n"), ("id", "most", "x"))
    return attrs.evolve(TWO, names=names, keys=((0,),), broadcast_order=order)


def fed(layout, batches):
    taken = Taken()
    batch_input = BatchInput(layout, task(0))
    for one in batch_input.ordered(batches[0], iter(batches[1:])):
        batch_input.feed(one, taken)
    return taken.calls


@pytest.mark.parametrize("order", [(), ("most",)])
def test_broadcast_rows_come_first_in_an_order_that_does_not_depend_on_their_arrival(order):
    found = []
    for arrival in (RULES, RULES[::-1], RULES[2:] + RULES[:2]):
        batches = [with_rules(["ann"], arrival[:1]), with_rules(["bob", "eve"], arrival[1:])]
        batches[0] = with_pulse(batches[0], 1, group=0)
        first, *others = fed(with_broadcast(*order), batches)
        found.append(first)
        assert [keys for _, keys, *_ in others] == [["ann"], ["bob", "eve"]]
    assert found[0] == found[1] == found[2]
    assert sorted(map(str, map(tuple, found[0]))) == sorted(str(tuple(r.values())) for r in RULES)
    if order:
        assert [row.most for row in found[0]] == [9, 9, 10, 10, None]


def test_event_times_are_those_of_the_keyed_input():
    seen = []
    taken = Taken()
    taken.processes_late = True
    noon_us = int(NOON.timestamp()) * 1_000_000
    taken.event_time_bounds = EventTimeBounds(noon_us)
    taken.saw_event_time = lambda at_us, side, late, ahead: seen.append((at_us, side, late, ahead))
    layout = attrs.evolve(with_broadcast(), names=(("k", "at"), ("id", "most", "x")))
    layout = attrs.evolve(layout, event_times=((1, 0),))
    given = with_rules(["ann", "bob"], RULES)
    kind = pa.struct([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    sides = [*[None] * len(RULES), {"k": "ann", "at": NOON}, {"k": "bob", "at": None}]
    given = given.set_column(0, HiddenColumns.FIRST, pa.array(sides, kind))
    batch_input = BatchInput(layout, task(0))
    for one in batch_input.ordered(given, iter(())):
        batch_input.feed(one, taken)
    assert seen == [(noon_us, 0, 1, 0)]
    assert len(taken.calls) == 2


def test_a_batch_of_one_of_the_two_alone():
    assert fed(with_broadcast(), [with_rules(["ann"], [])]) == [([("ann", 0)], ["ann"], [0], 0)]
    assert fed(with_broadcast(), [with_rules([], RULES[:1])]) == [[("b", 10, [1])]]
