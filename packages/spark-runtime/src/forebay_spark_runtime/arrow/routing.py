"""Getting rows to their subtask: partition ``i`` of the shuffle holds exactly subtask ``i``.

From Spark 4.1 ``repartitionById`` takes the partition from an expression. Before, rows are
repartitioned by one whose values were chosen so that Spark's own hash sends them where they belong.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the customary name

SPARK_HASH_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def route(df: Any, subtask: Any, parallelism: int) -> Any:
    """``df`` in ``parallelism`` partitions, row by row in the one that ``subtask``, a column, says.

    The column is worked out by the shuffle and does not travel with the rows.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(parallelism, subtask)
    values = F.array(*[F.lit(value) for value in partition_values(parallelism)])
    return df.repartition(parallelism, F.element_at(values, subtask + 1))


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
