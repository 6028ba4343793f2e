"""The advice on the number of subtasks."""

from __future__ import annotations

import logging

import pytest

from forebay_spark_runtime.driver.parallelism import advice_on, warn_of_parallelism
from forebay_state_api import key_group_range_of


@pytest.mark.parametrize(("parallelism", "most"), [(20_000, 32_768), (1_001, 1_001)])
def test_more_subtasks_than_cores_are_questioned(parallelism, most):
    assert f"parallelism is {parallelism}: each micro-batch runs" in advice_on(parallelism, most)


@pytest.mark.parametrize(
    ("parallelism", "most", "needed"), [(100, 128, 64), (90, 128, 64), (7, 8, 4), (127, 128, 64)]
)
def test_subtasks_that_do_not_make_it_quicker_are_questioned(parallelism, most, needed):
    def slowest(subtasks):
        return max(len([*key_group_range_of(i, subtasks, most)]) for i in range(subtasks))

    assert f"pass parallelism={needed}, or" in advice_on(parallelism, most)
    assert slowest(parallelism) == slowest(needed) < slowest(needed - 1)


@pytest.mark.parametrize(
    ("parallelism", "most"),
    [(1, 1), (1, 128), (2, 128), (10, 128), (32, 128), (64, 128), (128, 128), (1_000, 32_768)],
)
def test_others_are_not(parallelism, most):
    assert advice_on(parallelism, most) == ""


def test_it_is_logged_once(caplog):
    with caplog.at_level(logging.WARNING):
        for uid in ("a", "a", "b", "b"):
            warn_of_parallelism(100, 128, uid)
            warn_of_parallelism(64, 128, uid)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "operator 'a'",
        "operator 'b'",
    ]
