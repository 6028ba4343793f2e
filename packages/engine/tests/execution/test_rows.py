"""The classes of rows: columns of any names, by name and by position."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.execution.rows import check_rows, row_class
from forebay_state_api.errors import OutputSchemaError
from forebay_state_api.job.futures import StateFuture


def test_a_row_gives_columns_by_name_as_sparks_does():
    inner = row_class(("x", "y"))
    row = row_class(("user", "odd name", "parts"))._make(("ann", 5, [inner(1, {"k": inner(2, 3)})]))
    assert (row["user"], row["odd name"], row[0], row[-2], row[:2]) == (
        "ann",
        5,
        "ann",
        5,
        ("ann", 5),
    )
    assert row.asDict() == {"user": "ann", "odd name": 5, "parts": row.parts}
    assert row.asDict(recursive=True) == {
        "user": "ann",
        "odd name": 5,
        "parts": [{"x": 1, "y": {"k": {"x": 2, "y": 3}}}],
    }
    with pytest.raises(KeyError, match="no column 'name'; the columns are user, odd name, parts"):
        row["name"]
    with pytest.raises(AttributeError, match="no column 'name'; the columns are user, odd name"):
        _ = row.name
    assert row_class(("asDict", "x"))._make((1, 2)).asDict == 1
    assert "odd name" in row
    assert "name" not in row
    assert 5 not in row


def test_odd_column_names_are_read_by_getattr():
    names = ("a b", "class", "_1", "_2", "x.y", "column0", "ünï")
    row = row_class(names)._make(range(7))
    assert [getattr(row, name) for name in names] == list(range(7))
    assert row._asdict() == dict(zip(names, range(7), strict=True))


def test_spark_s_own_default_names_are_not_shifted():
    row = row_class(("_1", "_2"))._make(("a", "b"))
    assert (row._1, row._2) == ("a", "b")


def test_a_column_that_would_hide_a_method_is_read_by_position():
    row = row_class(("_make", "__len__", "index"))._make((1, 2, 3))
    assert (row[0], len(row), row.index) == (1, 3, 3)


@given(st.lists(st.text(min_size=1), unique=True, max_size=6))
def test_any_names_make_a_row(names):
    row = row_class(tuple(names))._make(range(len(names)))
    assert tuple(row) == tuple(range(len(names)))
    for position, name in enumerate(names):
        if not hasattr(tuple, name) and name not in ("_make", "_fields", "_asdict", "_replace"):
            assert getattr(row, name) == position


async def asked():
    return 1


@pytest.mark.parametrize(
    "emitted", [lambda made: ("a", made), lambda made: ("a", {"b": [made]}), lambda made: made]
)
def test_a_coroutine_or_task_in_a_row_is_said_to_be_not_awaited(emitted):
    says = r"^Totals emitted a coroutine that was not awaited: write `await asked\(\.\.\.\)`, and"
    with pytest.raises(OutputSchemaError, match=says):
        check_rows([emitted(asked())], "Totals")

    async def with_task():
        task = asyncio.create_task(asked())
        with pytest.raises(OutputSchemaError, match="a Task that was not awaited: await it"):
            check_rows([emitted(task)], "Totals")
        await task

    asyncio.run(with_task())


def test_the_search_for_what_was_not_awaited_ends_in_a_list_that_contains_itself():
    endless = [("a", "b")]
    endless += [endless, {"again": endless}]
    check_rows([("a", endless)], "Totals")
    endless[0] = StateFuture()
    with pytest.raises(OutputSchemaError, match="a StateFuture that was not awaited"):
        check_rows([("a", endless)], "Totals")
