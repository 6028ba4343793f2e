"""Routes rows to their subtasks: partition ``i`` of the shuffle holds exactly subtask ``i``.

From Spark 4.1 on, ``repartitionById`` takes the partition from an expression. In earlier versions
rows are repartitioned by an expression whose values Spark's own hash sends to the right partition.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

SPARK_HASH_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def route(df: DataFrame, subtask: Column, parallelism: int) -> DataFrame:
    """Return ``df`` in ``parallelism`` partitions; column ``subtask`` gives each row's partition.

    The shuffle computes the column, which is not part of the rows.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(parallelism, subtask)
    values = F.array(*[F.lit(value) for value in partition_values(parallelism)])
    return df.repartition(parallelism, F.element_at(values, subtask + 1))


@lru_cache(maxsize=64)
def partition_values(parallelism: int) -> tuple[int, ...]:
    """Return, for each partition, a number that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < parallelism:
        found.setdefault(spark_hash(candidate) % parallelism, candidate)
        candidate += 1
    return tuple(found[partition] for partition in range(parallelism))


def spark_hash(value: int) -> int:
    """Return Spark's ``hash(int)``: Murmur3, 32 bits, seed 42, signed."""
    k = (value & _MASK) * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) & _MASK
    k = k * 0x1B873593 & _MASK
    h = SPARK_HASH_SEED ^ k
    h = (h << 13 | h >> 19) & _MASK
    h = (h * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h ^= h >> 16
    h = h * 0x85EBCA6B & _MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h
