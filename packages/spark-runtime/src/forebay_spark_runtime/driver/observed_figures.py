"""Observed metrics of a keyed operator: the figures of its subtasks, in each progress event.

Each subtask ends its output with a row of figures. An observation node adds these rows up and a
filter drops them. If a subtask ran twice, as after the loss of a stage, it counts once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime.arrow.figures_column import COLUMN, KEYS, SUMS

PREFIX: Final = "forebay:"
"""The beginning of the names of observed metrics; the operator's uid follows."""

FIELD: Final = "figures"
"""The only field of the observed row: a map from key to number."""


def observed(df: DataFrame, uid: str) -> DataFrame:
    """Return ``df`` without the rows of figures, which are observed as ``forebay:<uid>``."""
    figures = _added_up(F.collect_list(COLUMN)).alias(FIELD)
    return df.observe(f"{PREFIX}{uid}", figures).where(f"{COLUMN} IS NULL").drop(COLUMN)


def _added_up(rows: Column) -> Column:
    """Return a map of the totals of all subtasks, without what is not known.

    The rows are sorted, by the subtask's number before all, so that a second row of a subtask
    follows the first. ``rows`` occurs once: each occurrence would be collected again.
    """
    unknown = F.array_repeat(F.lit(None).cast("double"), len(KEYS) + 1)
    start = F.struct(F.lit(-1.0).alias("subtask"), unknown.alias("totals"))
    # One text instead of many literals: Spark prints the plan in errors.
    keys = F.split(F.lit(",".join(KEYS)), ",")

    def add(total: Column, row: Column) -> Column:
        totals = F.transform(
            total["totals"],
            lambda one, at: F.when(
                at <= len(SUMS), F.coalesce(one + row[at], one, row[at])
            ).otherwise(F.greatest(one, row[at])),
        )
        added = F.struct(row[0].alias("subtask"), totals.alias("totals"))
        return F.when(row[0] == total["subtask"], total).otherwise(added)

    def named(total: Column) -> Column:
        return F.map_from_arrays(keys, F.slice(total["totals"], 2, len(KEYS)))

    totals = F.aggregate(F.array_sort(rows), start, add, named)
    return F.map_filter(totals, lambda _, number: number.isNotNull())
