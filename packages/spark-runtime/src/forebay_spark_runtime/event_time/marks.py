"""The watermark of a keyed operator goes on to Spark's operators behind it.

The row of figures that ends each subtask's output carries the operator's watermark in a hidden
column. ``withWatermark`` on that column makes it the watermark of Spark's operators. It is below
the node that observes figures: Spark would move the filter above it below it otherwise. The column
is dropped, and the user's column of event times is marked as the one that has the watermark.
"""

# ruff: noqa: SLF001 - pyspark has no public way to a plan

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.types import StructField, StructType, TimestampType

from forebay_engine.execution.arguments import event_time_missing_error
from forebay_spark_runtime.driver.operator_names import operators_in
from forebay_spark_runtime.driver.options import KeyedOptions, MarkSource
from forebay_spark_runtime.driver.session import is_connect, with_plan
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

COLUMN: Final = "__forebay_mark"
FIELD: Final = StructField(COLUMN, TimestampType())

_DELAY: Final = {"spark.watermarkDelayMs": 0}
"""The metadata by which Spark knows the column that a watermark is of."""
_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
_NODE: Final = "EventTimeWatermark "
_PASSED: Final = frozenset(
    {"Project", "Filter", "SubqueryAlias", "CollectMetrics", "Union", "ResolvedHint", "Generate"}
)
"""Nodes of a plan that have no use for a watermark below them."""
_sources: Final[dict[str, MarkSource]] = {}
"""``keyed_uuid`` → operator, of the operators of this process whose watermark goes on."""
_ON_CONNECT: Final = "with_watermark"


def checked_emits(
    df: DataFrame, column: object, event_time: object, *, sends_figures: bool, uid: str
) -> str | None:
    """Return the ``emits_event_time=`` of `keyed`; ``None`` without it.

    Raises `ConfigurationError` where no watermark can go on.
    """
    if column is None:
        return None
    who = f"operator {uid!r}: emits_event_time="
    if not isinstance(column, str) or not column:
        raise ConfigurationError(f"{who} is the name of a column of the output, not {column!r}")
    if event_time is None:
        raise event_time_missing_error(uid, "emits_event_time=")
    if not df.isStreaming:
        raise ConfigurationError(
            f"{who} is for streams: on bounded DataFrames and in foreachBatch Spark's operators "
            "need no watermark. Leave it out"
        )
    if not sends_figures:
        raise ConfigurationError(
            f"{who} sends the watermark in the rows of figures: leave "
            "spark.forebay.progress-figures=true"
        )
    if str(df.sparkSession.conf.get(_POLICY, "min")).lower() == "max":
        raise ConfigurationError(
            f"{who} needs {_POLICY}=min, Spark's default: with max, the watermark of another input "
            "would drop rows that this operator emits on time"
        )
    return column


def check_column(schema: StructType, column: str, uid: str) -> None:
    """Raise `ConfigurationError` unless an output column can have event times."""
    who = f"operator {uid!r}: emits_event_time="
    if column not in schema.names:
        raise ConfigurationError(
            f"{who} names {column!r}, and the output has the columns {', '.join(schema.names)}"
        )
    kind = schema[column].dataType
    if not isinstance(kind, TimestampType):
        raise ConfigurationError(
            f"{who} names a column of type timestamp, and {column!r} is of type "
            f"{kind.simpleString()}"
        )


def unfit_output_error(uid: str) -> ConfigurationError:
    """Return the error for an output with a column that can neither be null nor be made empty."""
    return ConfigurationError(
        f"operator {uid!r}: emits_event_time= needs a row that carries the watermark, and a column "
        "of this output can neither be null nor empty: declare it without NOT NULL"
    )


def refuse_second_mark(inputs: Iterable[DataFrame], uid: str) -> None:
    """Raise `ConfigurationError` if there is a watermark in the plan of one of the inputs."""
    if any(map(_has_watermark, inputs)):
        raise ConfigurationError(
            f"operator {uid!r}: there is a withWatermark, or another operator with "
            "emits_event_time=, before this one. Spark allows one watermark on the way of a row: "
            "remove it, and name the column by event_time= instead"
        )


def _has_watermark(df: DataFrame) -> bool:
    inner: Any = df
    if is_connect(df.sparkSession):
        return _ON_CONNECT in str(inner._plan.to_proto(inner.sparkSession.client))
    return _NODE in inner._jdf.queryExecution().analyzed().toString()


def marked(df: DataFrame) -> DataFrame:
    """Return an operator's output, with rows of figures, with its watermark."""
    return df.withWatermark(COLUMN, "0 seconds")


def tagged(df: DataFrame, column: str) -> DataFrame:
    """Return ``df`` without the column of the watermark; Spark knows ``column`` in its place."""
    columns = [
        F.col(quoted).alias(name, metadata=_DELAY) if name == column else F.col(quoted)
        for name in df.columns
        if name != COLUMN
        for quoted in (f"`{name.replace('`', '``')}`",)
    ]
    return df.select(*columns)


def remember(options: KeyedOptions) -> None:
    """Let operators behind this one find its watermark."""
    assert options.state_dir is not None
    _sources[options.keyed_uuid] = MarkSource(
        uid=options.uid,
        keyed_uuid=options.keyed_uuid,
        state_dir=options.state_dir,
        storage_options=options.settings.storage_options(),
    )


def without_marks(
    df: DataFrame, *, follows: bool, uid: str
) -> tuple[DataFrame, tuple[MarkSource, ...]]:
    """Return ``df`` without watermarks of keyed operators, and these operators.

    Only rows of their own, which projections, filters and unions have passed on, are of them: what
    Spark's operators with state emit has Spark's watermark. Raises `ConfigurationError` under Spark
    Connect, where the plan cannot be read, for an operator that ``follows`` event times.
    """
    inner: Any = df
    if not df.isStreaming:
        return df, ()
    if is_connect(df.sparkSession):
        if follows and COLUMN in str(inner._plan.to_proto(inner.sparkSession.client)):
            raise ConfigurationError(
                f"operator {uid!r}: under Spark Connect the watermark of emits_event_time= goes on "
                "to Spark's operators only. Leave emits_event_time= out, and emit "
                "ctx.timers.watermark in a column, which event_time= of this operator names"
            )
        return df, ()
    plan = inner._jdf.queryExecution().analyzed()
    if COLUMN not in plan.toString():
        return df, ()
    found: list[MarkSource] = []
    without = _without(plan, inner.sparkSession._jvm, found)
    return (with_plan(df, without), tuple(found)) if found else (df, ())


def _without(node: Any, jvm: Any, found: list[MarkSource]) -> Any:
    """Return a node without the marks below it, whose operators are added to ``found``."""
    if node.nodeName() == _NODE.strip():
        (_, made), *_ = operators_in(node.toString())
        if node.eventTime().name() != COLUMN or made not in _sources:
            return node
        found.append(_sources[made])
        return node.child()
    if node.nodeName() not in _PASSED:
        return node
    children, before = node.children(), len(found)
    made_of = [_without(children.apply(at), jvm, found) for at in range(children.size())]
    if len(found) == before:
        return node
    return node.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(made_of))
