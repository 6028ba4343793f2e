"""Observed metrics of a keyed operator: the figures of its subtasks, in each progress event.

Each subtask ends its output with a row of figures. An observation node adds these rows up and a
filter drops them. If a subtask ran twice, as after the loss of a stage, it counts once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime.arrow.figures_column import COLUMN, KEYS, SUMS

PREFIX: Final = "forebay:"
"""The beginning of the names of observed metrics; the operator's uid follows."""

FIELD: Final = "figures"
"""The only field of the observed row: a map from key to number."""


def observed(df: DataFrame, uid: str) -> DataFrame:
    """Return ``df`` without the rows of figures, which are observed as ``forebay:<uid>``."""
    figures = F.expr(_ADDED_UP).alias(FIELD)
    return df.observe(f"{PREFIX}{uid}", figures).where(f"{COLUMN} IS NULL").drop(COLUMN)


def _added_up(rows: str) -> str:
    """Return a map of the totals of all subtasks, without what is not known, in SQL.

    The rows are sorted, by the subtask's number before all, so that a second row of a subtask
    follows the first. ``rows`` occurs once: each occurrence would be collected again. It is a text,
    because each part of an expression costs pyspark several calls of the JVM.
    """
    start = f"array_repeat(cast(null as double), {len(KEYS) + 1})"
    total = (
        f"transform(done.totals, (one, at_) -> if(at_ <= {len(SUMS)}, "
        "coalesce(one + next_[at_], one, next_[at_]), greatest(one, next_[at_])))"
    )
    added = f"named_struct('subtask', next_[0], 'totals', {total})"
    # One text instead of many literals: Spark prints the plan in errors.
    named = f"map_from_arrays(split('{','.join(KEYS)}', ','), slice(done.totals, 2, {len(KEYS)}))"
    totals = (
        f"aggregate(sort_array({rows}), named_struct('subtask', -1D, 'totals', {start}), "
        f"(done, next_) -> if(next_[0] = done.subtask, done, {added}), done -> {named})"
    )
    return f"map_filter({totals}, (key_, number_) -> number_ IS NOT NULL)"


_ADDED_UP: Final = _added_up(f"collect_list({COLUMN})")
