"""Observed metrics of a keyed operator: the figures of its subtasks, in each progress event.

Each subtask ends its output with a row of figures. An observation node adds these rows up and a
filter drops them. If a subtask ran twice, as after the loss of a stage, it counts once.
"""

# ruff: noqa: SLF001 - pyspark has no public way to the id of a node

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime.arrow.figures_column import COLUMN, TYPE
from forebay_spark_runtime.driver.operator_names import figures_name
from forebay_spark_runtime.driver.session import is_connect, with_plan

FIELD: Final = "figures"
"""The only field of the observed row: a map from key to number."""


_NODE: Final = 1 << 62
"""The id of all observations of figures; Spark counts its own from 0."""


def observed(df: DataFrame, uid: str) -> DataFrame:
    """Return ``df`` without the rows of figures, which are observed as ``forebay:<uid>``."""
    figures = F.expr(f"{_ADDED_UP} AS {FIELD}")
    node = _as_one_node(df.observe(figures_name(uid), figures))
    return node.where(f"{COLUMN} IS NULL").drop(COLUMN)


def _as_one_node(df: DataFrame) -> DataFrame:
    """Return ``df``, observed, as the same node as all others that observe figures.

    Spark refuses two nodes of one name in a plan unless their ids are equal: the error would name
    a metric of which the job's author knows nothing. See `operator_names` for ours.
    """
    if is_connect(df.sparkSession):
        plan: Any = df._plan
        if hasattr(plan, "_root_plan_id"):
            plan._root_plan_id = _NODE
        else:  # until pyspark 4.0 the node has its child's id
            plan._child._plan_id = _NODE
        return df
    java: Any = df._jdf
    node = java.queryExecution().logical()
    return with_plan(df, node.copy(node.name(), node.metrics(), node.child(), _NODE))


def _added_up(rows: str) -> str:
    """Return a map of the totals of all subtasks, without what is not known, in SQL.

    The rows are sorted, by the subtask's number before all, so that a second row of a subtask
    follows the first. ``rows`` occurs once: each occurrence would be collected again. It is a text,
    because each part of an expression costs pyspark several calls of the JVM. It has few parts,
    because Spark plans them in each micro-batch and interprets them as each task ends; and it holds
    no names of figures, because Spark prints the plan in errors.
    """
    # Without any row, the map has one name and no number for it, and the filter drops it.
    unknown = "array(cast(null as double))"
    nothing = _totals("-1", "''", "cast(array() as array<double>)", unknown)
    added = _totals(
        "next_.subtask",
        "next_.names",
        "zip_with(done.sums, next_.sums, (one, more) -> coalesce(one + more, one, more))",
        "zip_with(done.maxima, next_.maxima, (one, more) -> greatest(one, more))",
    )
    totals = (
        f"aggregate(sort_array({rows}), {nothing}, "
        f"(done, next_) -> if(next_.subtask = done.subtask, done, {added}), "
        "done -> map_from_arrays(split(done.names, ','), concat(done.sums, done.maxima)))"
    )
    return f"map_filter({totals}, (key_, number_) -> number_ IS NOT NULL)"


def _totals(*values: str) -> str:
    fields = [f"'{name}', {value}" for name, value in zip(TYPE.names, values, strict=True)]
    return f"named_struct({', '.join(fields)})"


_ADDED_UP: Final = _added_up(f"collect_list({COLUMN})")
