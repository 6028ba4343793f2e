"""Spark's hash in Python, and the numbers that it sends to each partition."""

from __future__ import annotations

import pytest

from forebay_spark_runtime.arrow.routing import partition_values, spark_hash

# SELECT hash(v), on Spark 3.5 and 4.3.
GOLDEN = {
    0: 933211791,
    1: -559580957,
    2: 1765031574,
    3: -1823081949,
    4: -397064898,
    42: 29417773,
    127: 1135925485,
    -1: -1604776387,
    2147483647: 133916647,
    -2147483648: 723455942,
}


@pytest.mark.parametrize(("value", "expected"), GOLDEN.items())
def test_spark_s_hash(value, expected):
    assert spark_hash(value) == expected


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 64, 200, 1000])
def test_each_partition_has_its_value(parallelism):
    values = partition_values(parallelism)
    assert [spark_hash(value) % parallelism for value in values] == list(range(parallelism))
    assert len(set(values)) == parallelism


def test_the_values_stay_the_same():
    assert partition_values(4) == (12, 6, 2, 0)
