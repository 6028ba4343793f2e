"""Arrow batches to rows, and answers to additional columns; and the counts."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_spark_runtime.waiting import arrow_in
from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_spark_runtime.waiting.arrow_in import InputLayout, Segmenter, partition_of
from forebay_spark_runtime.waiting.arrow_out import AnswerWriter, FailedRow
from forebay_state_api.errors import ConfigurationError, FunctionError, OutputSchemaError
from forebay_state_api.metrics import total
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.metrics.histogram import Histogram


def batch(rows, partition=0):
    numbers = list(range(rows))
    columns = [numbers, [f"u{n % 3}" for n in numbers], [partition] * rows]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), names=["c0", "c1", "p"])


def cut(*batches, shown=(0, 1), key=None):
    segmenter = Segmenter(InputLayout(names=("n", "user"), shown=shown, key=key), "ask")
    return [segment for one in batches for segment in segmenter.segments(one)]


def test_batches_are_cut_and_rows_counted_on():
    segments = cut(batch(2500), batch(10))
    assert [(one.first, len(one.rows)) for one in segments] == [
        (0, 1000),
        (1000, 1000),
        (2000, 500),
        (2500, 10),
    ]
    assert segments[1].rows[0] == (1000, "u1")
    assert segments[1].rows[0].user == "u1"
    assert segments[1].data.column_names == ["c0", "c1"]


def test_large_rows_make_short_segments(monkeypatch):
    monkeypatch.setattr(arrow_in, "SEGMENT_BYTES", 1000)
    assert max(len(one.rows) for one in cut(batch(500))) < 60


def test_only_the_columns_that_are_wanted_become_values():
    (segment,) = cut(batch(3), shown=(1,), key=(0,))
    assert segment.rows == [("u0",), ("u1",), ("u2",)]
    assert segment.keys == [(0,), (1,), (2,)]
    (segment,) = cut(batch(3), shown=())
    assert segment.rows == [()] * 3
    (segment,) = cut(batch(3), key=lambda row: row.n % 2)
    assert segment.keys == [0, 1, 0]


@pytest.mark.parametrize(("shown", "key"), [((0, 1), None), ((1,), (0,))])
def test_a_date_that_python_cannot_hold_is_named_with_its_row(shown, key):
    days = batch(1500).set_column(0, "c0", pa.array([1] * 1499 + [5_000_000], pa.date32()))
    with pytest.raises(ConfigurationError) as caught:
        cut(
            batch(10).set_column(0, "c0", pa.array([1] * 10, pa.date32())),
            days,
            shown=shown,
            key=key,
        )
    assert str(caught.value).startswith("ask: row 1509 of the partition cannot be read: column 'n'")
    assert len(cut(days, shown=(1,))) == 2


@pytest.mark.parametrize("key", [lambda row: row.m, lambda row: [row.n]])
def test_a_key_function_that_fails_is_named(key):
    with pytest.raises(FunctionError, match=r"ask: key= raised (AttributeError|TypeError)"):
        cut(batch(3), key=key)


def test_a_partition_that_was_moved_has_both_numbers():
    assert partition_of(batch(3, partition=4), 4) == "4"
    assert partition_of(batch(3, partition=4), 0) == "0.4"


NUMBER = (("n", pa.int64()),)


def writer(schema=NUMBER, *, with_error=False):
    names = ["c0", "c1", *(name for name, _ in schema), *(["error"] if with_error else [])]
    return AnswerWriter(
        pa.schema(schema),
        types=["long"] * len(schema),
        function="ask",
        time_zone="UTC",
        describe="row {}".format,
        with_error=with_error,
        names=names,
    )


def written(answers, positions=None, **options):
    (segment,) = cut(batch(len(answers)), shown=(0,))
    segment.answers = list(answers)
    return writer(**options).batch(segment, positions)


def test_bare_answers_beside_untouched_columns():
    out = written([5, 6, 7])
    assert out.to_pydict() == {"c0": [0, 1, 2], "c1": ["u0", "u1", "u2"], "n": [5, 6, 7]}


@pytest.mark.parametrize("answer", [5, (5,), {"n": 5}, [5], [(5,)], [{"n": 5}]])
def test_forms_of_an_answer(answer):
    assert written([answer]).column("n").to_pylist() == [5]


def test_a_null_is_in_a_tuple_or_a_dict():
    assert written([(None,), {"n": None}]).column("n").to_pylist() == [None, None]


def test_one_column_of_arrays_takes_them_in_a_tuple():
    schema = (("n", pa.list_(pa.int64())),)
    assert written([([1, 2],), [([3],), ([],)]], schema=schema).to_pydict() == {
        "c0": [0, 1, 1],
        "c1": ["u0", "u1", "u1"],
        "n": [[1, 2], [3], []],
    }


def test_none_one_and_many_answers_of_a_row():
    out = written([[], 1, [2, 3]])
    assert out.to_pydict() == {"c0": [1, 2, 2], "c1": ["u1", "u2", "u2"], "n": [1, 2, 3]}


def test_answers_in_the_order_in_which_they_came():
    assert written([1, [2, 3], 4], [2, 1]).to_pydict() == {
        "c0": [2, 1, 1],
        "c1": ["u2", "u1", "u1"],
        "n": [4, 2, 3],
    }


def test_errors_beside_answers():
    out = written([1, FailedRow("OSError", "no", 3)], with_error=True)
    assert out.column("n").to_pylist() == [1, None]
    assert out.column("error").to_pylist() == [
        None,
        {"type": "OSError", "message": "no", "tries": 3},
    ]
    assert written([1, 2], with_error=True).column("error").null_count == 2


@pytest.mark.parametrize(
    ("answers", "positions", "says"),
    [
        ([1, "x"], None, "row 1: column 'n' is declared long; ask gave str 'x'"),
        ([1, None], None, "row 1: ask returned None"),
        ([[1, None]], None, "row 0: ask returned None"),
        ([1, 2, {"m": 1}], [0, 2], "row 2: ask emitted {'m': 1}"),
        ([[1, 2], [3, "x"]], None, "row 1: column 'n'"),
    ],
)
def test_misfits_are_named(answers, positions, says):
    with pytest.raises(OutputSchemaError) as caught:
        written(answers, positions)
    assert str(caught.value).startswith(says)


# --- counts -------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=300), st.sampled_from([0.5, 0.99, 1.0]))
def test_quantiles_are_near(durations, share):
    histogram = Histogram()
    histogram.add(durations[::2])
    other = Histogram()
    other.add(durations[1::2])
    histogram += other
    exact = sorted(durations)[max(-(-int(share * 100) * len(durations) // 100) - 1, 0)]
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.03)


def test_no_durations_and_durations_of_nothing():
    histogram = Histogram()
    assert histogram.quantile(0.5) == 0
    histogram.add([])
    histogram.add([0.0, 1e-9])
    assert histogram.quantile(0.5) == pytest.approx(1e-6, rel=0.03)


def test_counts_are_added_and_travel_as_plain_data():
    first = CallMetrics(rows=5, tries=7, in_flight_max=3, drain_s=1.0)
    first.latency.add([0.1] * 5)
    second = CallMetrics(rows=2, retries=1, in_flight_max=9, drain_s=0.5)
    second.latency.add([0.4])
    both = total(CallMetrics, [first, second])
    again = CallMetrics.of_data(json.loads(json.dumps(both.as_data())))
    assert (again.rows, again.tries, again.retries, again.in_flight_max) == (7, 7, 1, 9)
    assert again.drain_s == 1.0
    assert again.latency.quantile(1.0) == pytest.approx(0.4, rel=0.03)
    assert str(again).startswith("rows 7, tries 7, retries 1, in_flight_max 9, drain_s 1.00, ")
    assert str(again).endswith("latency 97.7 ms at 50 %, 402.3 ms at 99 %")


def test_a_segment_of_no_more_rows_knows_it():
    segment = RowSegment(0, [1, 2])
    assert list(segment.unread) == [0, 1]
    assert segment.left == 2
