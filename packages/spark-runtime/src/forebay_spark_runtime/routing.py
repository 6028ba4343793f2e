"""Getting rows to their subtask: partition ``i`` of the shuffle holds exactly subtask ``i``.

From Spark 4.1 ``repartitionById`` takes the partition from a column. Before, rows are repartitioned
by a column whose values were chosen so that Spark's own hash sends them where they belong.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the customary name

SPARK_HASH_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def route(df: Any, subtask_column: str, parallelism: int) -> Any:
    """``df`` in ``parallelism`` partitions, row by row in the one that ``subtask_column`` says."""
    if hasattr(df, "repartitionById"):
        return df.repartitionById(parallelism, F.col(subtask_column))
    values = partition_values(parallelism)
    hashed = F.element_at(F.array(*[F.lit(v) for v in values]), F.col(subtask_column) + 1)
    route_column = f"{subtask_column}_route"
    routed = df.withColumn(route_column, hashed).repartition(parallelism, route_column)
    return routed.drop(route_column)


@lru_cache(maxsize=64)
def partition_values(parallelism: int) -> tuple[int, ...]:
    """For each partition a number that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < parallelism:
        found.setdefault(spark_hash(candidate) % parallelism, candidate)
        candidate += 1
    return tuple(found[partition] for partition in range(parallelism))


def spark_hash(value: int) -> int:
    """Spark's ``hash(int)``: Murmur3, 32 bits, seed 42, signed."""
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
