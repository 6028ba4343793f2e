"""Columns have the bytes of the codec's values, in both directions."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.codecs import codec_for
from forebay_state_api.codecs.column_bytes import pack_each, split, unpack
from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.codecs.columns import (
    Column,
    Texts,
    copy_spans,
    first_not_utf8,
    offsets_of,
)

EDGES = sorted(
    {
        sign * (1 << bits) + off
        for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62)
        for sign in (1, -1)
        for off in (-1, 0, 1)
    }
    | {(1 << 63) - 1, -(1 << 63)}
)
LONG = [31, 32, 255, 256, 65535, 65536]
VALUES = {
    "int64": (int, st.sampled_from(EDGES) | st.integers(-(1 << 63), (1 << 63) - 1)),
    "float64": (float, st.floats()),
    "bool": (bool, st.booleans()),
    "str": (
        str,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
        | st.sampled_from(["a" * length for length in LONG]),
    ),
    "bytes": (
        bytes,
        st.binary(max_size=40) | st.sampled_from([b"a" * length for length in LONG]),
    ),
    "date": (date, st.dates()),
}
"""Kind → the Python type, and its values."""


@st.composite
def columns_of_values(draw):
    """Draw kinds, whether ``None`` occurs, and as many lists of equally many values."""
    kinds = draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=17))
    count = draw(st.integers(0, 20))
    optional = draw(st.booleans())
    drawn = []
    for kind in kinds:
        values = VALUES[kind][1]
        values = st.none() | values if optional else values
        drawn.append(draw(st.lists(values, min_size=count, max_size=count)))
    return kinds, optional, drawn


def column(kind: str, values: list) -> Column:
    """The column of some values, made without the code under test."""
    valid = np.array([value is not None for value in values], bool)
    if kind in ("str", "bytes"):
        parts = [
            b"??" if value is None else value.encode() if kind == "str" else value
            for value in values
        ]
        offsets = np.cumsum([3, *map(len, parts)])
        data = np.frombuffer(b"odd" + b"".join(parts) + b"odd", np.uint8)
        return Column(Texts(offsets, data, kind == "bytes"), valid)
    if kind == "date":
        epoch = date(1970, 1, 1)
        days = [300 if value is None else (value - epoch).days for value in values]
        return Column(np.array(days, np.int64), valid)
    filler = 300 if kind == "int64" else 0
    return Column(np.array([filler if value is None else value for value in values], kind), valid)


def listed(column: Column, kind: str) -> list:
    """The Python values of a column, made without the code under test."""
    values = column.values
    if isinstance(values, Texts):
        raw = values.parts()
        plain = raw if kind == "bytes" else [part.decode() for part in raw]
    elif kind == "date":
        plain = [date.fromordinal(int(day) + 719163) for day in values]
    else:
        plain = values.tolist()
    if column.valid is None:
        return plain
    return [value if there else None for value, there in zip(plain, column.valid, strict=True)]


def python_type(kind: str, *, optional: bool):
    return VALUES[kind][0] | None if optional else VALUES[kind][0]


@given(columns_of_values())
def test_tuples_have_the_bytes_of_the_codec_and_come_back(case):
    kinds, optional, drawn = case
    codec = codec_for(tuple[*(python_type(k, optional=optional) for k in kinds)], what="v")
    types = ColumnTypes.of(codec)
    assert types.kinds == tuple(kinds)
    assert types.nullable == (optional,) * len(kinds)
    rows = [*zip(*drawn, strict=True)]
    made = [column(kind, values) for kind, values in zip(kinds, drawn, strict=True)]
    data = types.pack(made)
    assert data == codec.pack(rows)
    back = types.unpack(data)
    assert repr([listed(*one) for one in zip(back, kinds, strict=True)]) == repr(drawn)
    each = pack_each(made, kinds, tuples=True)
    assert each.parts() == codec.pack_each(rows)
    assert split(data, kinds, tuples=True).parts() == codec.pack_each(rows)
    assert repr(types.values(made)) == repr(rows)


@given(columns_of_values())
def test_scalars_have_the_bytes_of_the_codec_and_come_back(case):
    (kind, *_), optional, (values, *_) = case
    types = ColumnTypes.of(codec_for(python_type(kind, optional=optional), what="v"))
    data = types.pack([column(kind, values)])
    assert data == types.codec.pack(values)
    assert repr(listed(types.unpack(data)[0], kind)) == repr(values)
    assert types.split(data).parts() == types.codec.pack_each(values)


@pytest.mark.parametrize("value", [5, -20, 200, -100, 70_000, -(1 << 40), (1 << 63) - 1])
def test_ints_of_one_width_are_read_without_python_objects(value):
    count = 70_000
    types = ColumnTypes.of(codec_for(tuple[int, int], what="v"))
    data = types.codec.pack([(value, 1)] * count)
    first, second = types.unpack(data)
    assert (first.values == value).all()
    assert (second.values == 1).all()
    assert len(first) == count


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (int, 1 << 63),
        (int, -(1 << 63) - 1),
        (int, 1 << 64),
        (int | None, 1 << 64),
        (str, "\ud800"),
        (tuple[int, str], (1 << 70, "a")),
    ],
)
def test_values_that_arrays_cannot_hold_are_not_taken(declared, value):
    types = ColumnTypes.of(codec_for(declared, what="v"))
    assert types.unpack(types.codec.pack([value])) is None
    assert types.unpack(types.codec.pack([value, value])) is None
    assert types.columns([value]) is None


@attrs.frozen
class Totals:
    count: int
    name: str | None


def test_fields_of_records_are_columns():
    types = ColumnTypes.of(codec_for(Totals, what="v"))
    assert (types.names, types.kinds) == (("count", "name"), ("int64", "str"))
    assert types.nullable == (False, True)
    struct = ColumnTypes.of(codec_for("n long not null, day date", what="v"))
    assert (struct.names, struct.kinds, struct.nullable) == (
        ("n", "day"),
        ("int64", "date"),
        (False, True),
    )
    values = [Totals(1, "a"), Totals(2, None)]
    assert types.values(types.columns(values)) == values


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (list[int], [[1], []]),
        (datetime, [datetime(2024, 1, 1, tzinfo=UTC)]),
        (Decimal, [Decimal("1.50")]),
        (tuple[int, list[int]], [(1, [2])]),
        (tuple[int, int] | None, [(1, 2), None]),
        (None, [1, "a", (1, 2)]),
    ],
)
def test_other_types_are_one_column_of_python_values(declared, values):
    types = ColumnTypes.of(codec_for(declared, what="v"))
    assert types.kinds == ("object",)
    made = types.columns(values)
    assert types.values(made) == values
    assert types.pack(made) == types.codec.pack(values)
    assert types.unpack(types.pack(made))[0].values.tolist() == values
    assert types.split(types.pack(made)).parts() == types.codec.pack_each(values)


@pytest.mark.parametrize("kind", [*VALUES])
def test_columns_of_none_alone_are_shorter_than_a_value(kind):
    types = ColumnTypes.of(codec_for(python_type(kind, optional=True), what="v"))
    assert types.pack([column(kind, [None])]) == types.codec.pack([None])
    assert pack_each([column(kind, [None])], [kind], tuples=False).parts() == [b"\xc0"]


def test_a_list_that_no_codec_has_packed_is_not_split():
    with pytest.raises(ValueError, match="bytes of values instead of"):
        split(b"\x92\xcc\x01\xcc\x02", ("int64",), tuples=False)


def test_rows_whose_lengths_only_add_up_are_read_one_by_one():
    rows = [(1, 300), (300, 1), (1, 300)]
    data = codec_for(tuple[int, int], what="v").pack(rows)
    columns = unpack(data, ("int64", "int64"), tuples=True)
    assert [column.values.tolist() for column in columns] == [[1, 300, 1], [300, 1, 300]]


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_the_first_text_that_is_not_utf8_is_found(parts):
    def is_utf8(part: bytes) -> bool:
        try:
            part.decode()
        except UnicodeDecodeError:
            return False
        return True

    bad = next((at for at, part in enumerate(parts) if not is_utf8(part)), None)
    assert first_not_utf8(Texts.of(parts, binary=False)) == bad


def test_halves_of_one_character_are_not_utf8():
    assert first_not_utf8(Texts.of([b"a", b"\xc3", b"\xa9"], binary=False)) == 1


@given(st.lists(st.binary(max_size=200), max_size=90), st.randoms())
def test_spans_are_copied_whatever_their_lengths(parts, random):
    texts = Texts.of(parts, binary=True)
    order = [*range(len(parts))]
    random.shuffle(order)
    assert texts.take(np.array(order, np.int64)).parts() == [parts[at] for at in order]


def test_spans_of_many_lengths_are_copied():
    parts = [bytes([at]) * at for at in range(200)]
    texts = Texts.of(parts, binary=True)
    target = np.zeros(len(texts.data), np.uint8)
    lengths = texts.lengths[::-1]
    copy_spans(texts.data, texts.offsets[:-1][::-1], target, offsets_of(lengths)[:-1], lengths)
    assert target.tobytes() == b"".join(parts[::-1])


@given(columns_of_values(), st.lists(st.booleans(), max_size=20))
def test_columns_are_taken_and_spread(case, wanted):
    (kind, *_), _, (values, *_) = case
    made = column(kind, values)
    index = np.array([at for at, one in enumerate(wanted) if one and at < len(values)], np.int64)
    assert repr(listed(made.take(index), kind)) == repr([values[at] for at in index])
    present = np.array(([True, False] * len(values))[: 2 * len(values)], bool)
    spread = made.spread(present)
    assert len(spread) == len(present)
    assert repr(listed(spread.take(np.flatnonzero(present)), kind)) == repr(values)
