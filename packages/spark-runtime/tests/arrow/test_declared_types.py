"""The names of an output schema's types in errors."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from forebay_spark_runtime.arrow.declared_types import declared_types

PARSED = StructType(
    [
        StructField("user", StringType()),
        StructField("n", LongType()),
        StructField("x", DecimalType(6, 2)),
    ]
)


@pytest.mark.parametrize(
    ("ddl", "types"),
    [
        ("user string, n long, x decimal(6, 2)", ["string", "long", "decimal(6, 2)"]),
        ("user: string,n:LONG NOT NULL,`x, y` decimal(6,2)", ["string", "LONG", "decimal(6,2)"]),
        (
            "user array<struct<a: int, b: string>> COMMENT 'a, b', n map<string, int>, x int",
            ["array<struct<a: int, b: string>>", "map<string, int>", "int"],
        ),
        ("struct<user: string, n: long, x: int>", ["string", "bigint", "decimal(6,2)"]),
        (PARSED, ["string", "bigint", "decimal(6,2)"]),
    ],
    ids=str,
)
def test_types_are_in_the_authors_words(ddl, types):
    assert declared_types(ddl, PARSED) == types
