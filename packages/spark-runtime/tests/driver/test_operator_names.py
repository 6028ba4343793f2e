"""The names under which operators are observed, and what they say of a plan."""

from __future__ import annotations

import uuid

import pytest

from forebay_spark_runtime.driver.operator_names import (
    figures_name,
    observed_id,
    operators_in,
    rows_name,
    uid_of_figures,
    uid_of_two,
)

FIRST, SECOND = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@pytest.mark.parametrize("uid", ["a", "a:b", f"a:{FIRST}", "forebay:a", "two\nlines"])
def test_a_name_shows_whose_it_is(uid):
    assert observed_id(rows_name(uid, SECOND)) == SECOND
    assert uid_of_figures(figures_name(uid)) == uid


def test_names_of_others():
    for name in ("mine", f"mine:a:{FIRST}", "forebay"):
        assert observed_id(name) is uid_of_figures(name) is None


def plan(*operators):
    lines = [
        f"+- ~CollectMetrics {name}, [count(1) AS rows_in#1L], 3"
        for uid, made in operators
        for name in (figures_name(uid), rows_name(uid, made))
    ]
    return "\n".join(["Write", *lines, "+- CollectMetrics mine, [count(1)], 4"])


def test_operators_in_the_text_of_a_plan():
    assert operators_in(plan(("a", FIRST), ("b:c", SECOND))) == [("a", FIRST), ("b:c", SECOND)]
    assert operators_in(plan()) == []


def test_two_operators_of_one_uid_in_a_plan():
    assert uid_of_two(plan(("a", FIRST), ("b", SECOND))) is None
    assert uid_of_two(plan(("a", FIRST), ("a", FIRST))) is None, "one operator, used twice"
    assert uid_of_two(plan(("b", FIRST), ("a", FIRST), ("a", SECOND))) == "a"
