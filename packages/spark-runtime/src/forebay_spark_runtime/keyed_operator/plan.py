"""The Spark plan of a keyed operator: hidden columns, an observation node, and routing.

The user's columns come first and are unchanged; `HiddenColumns` follow. With two inputs, each
input's columns are packed into a struct column, the other input's struct is null, and the two are
united. The user's columns are not: Spark's union converts columns of two types to one, which may
lose digits, and a row's key must be the one of which its key group was computed. Of each row of a
broadcast input every subtask gets a copy, under the first of its key groups, so that one shuffle
carries both inputs. A stream is united with the pulse, a row for each subtask, which brings the
batch's time to subtasks without rows too, and makes Spark run every subtask in every micro-batch.
The observation node is at the pulse, so that the user's rows do not pay for it. Under Spark Connect
and on bounded DataFrames there is no pulse: the node is on the rows, which makes Spark run every
subtask, and only ticks bring the time to subtasks without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.types import StructType

from forebay_spark_runtime.arrow.declared_types import declared_types
from forebay_spark_runtime.arrow.input_types import check_writable, refuse_in_pipeline
from forebay_spark_runtime.arrow.routing import route
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_spark_runtime.driver.operator_names import rows_name
from forebay_spark_runtime.driver.session import is_connect
from forebay_spark_runtime.event_time.pulse import streaming_range
from forebay_spark_runtime.event_time.ticks import ticks_of
from forebay_spark_runtime.keyed_operator.key_columns import KeyColumns, quoted
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_spark_runtime.driver.options import KeyedOptions


GROUP_BITS: Final = 15
"""Bits of the key group in `HiddenColumns.TIME_AND_GROUP`: max parallelism is at most 32,768."""
PULSE: Final = 1 << GROUP_BITS
"""The bit of `HiddenColumns.TIME_AND_GROUP` that only rows of the pulse have."""
TIME_SHIFT: Final = GROUP_BITS + 1
"""The position of the time in `HiddenColumns.TIME_AND_GROUP`."""
BATCH_MS: Final = (
    "zip_with(array(0L), array(0L), (zero, also_zero) -> unix_millis(current_timestamp()))[0]"
)
"""The micro-batch's time in ms, in SQL; the same when Spark runs the batch again.

It is constant within a batch. Spark writes constants into the code that it generates, and would
compile and warm up that code for each batch. No version generates code for `zip_with`. The time is
in the lambda, since Spark would make an array of it for each row; the array of zeros it makes once.
"""


class HiddenColumns:
    """Names of the hidden columns that are sent to the workers with the rows."""

    TIME_AND_GROUP: Final = "__forebay_time_and_group"
    """The micro-batch's time in ms, shifted left by `TIME_SHIFT`, `PULSE` and the row's key group.

    The time is that of a stream, and 0 otherwise."""
    FIRST: Final = "__forebay_first"
    SECOND: Final = "__forebay_second"
    COLUMN: Final = "__forebay_column_"
    PREFIX: Final = "__forebay_"


_PACKED: Final = (HiddenColumns.FIRST, HiddenColumns.SECOND)
"""The struct columns of two inputs."""


@attrs.frozen
class Input:
    """One input."""

    df: DataFrame
    keys: KeyColumns | None
    """``None`` for a broadcast input, which is the second of two."""
    order_by: tuple[str, ...]

    def carried(self, name: str) -> str:
        """Return a column's name in the plan: ``mapInArrow`` does not accept dots in names."""
        if name.isidentifier():
            return name
        return f"{HiddenColumns.COLUMN}{self.df.columns.index(name)}"


@attrs.frozen
class OutputSchema:
    """The declared output schema, as Spark and as Arrow types."""

    spark: StructType
    arrow: Any
    types: list[str]
    """The types of the columns, as the user wrote them."""


def output_schema(session: SparkSession, schema: Any, uid: str) -> OutputSchema:
    """Parse the declared output schema with Spark; raises as `parsed_schema` does."""
    return parsed_schema(lambda ddl: session.createDataFrame([], ddl).schema, schema, uid)


def parsed_schema(parse: Callable[[Any], StructType], schema: Any, uid: str) -> OutputSchema:
    """Parse a declared output schema; ``parse`` makes a ``StructType`` of DDL.

    Raises `ConfigurationError` if the schema does not parse, has no columns, names a column twice,
    or has one of a type that Python cannot write. ``uid`` names the operator in the message.
    """
    if not isinstance(schema, str | StructType):
        raise ConfigurationError(
            f"operator {uid!r}: an output schema is a text of columns with their types, such as "
            f"'user string, n long', or a StructType, not {schema!r:.200}"
        )
    try:
        spark = schema if isinstance(schema, StructType) else parse(schema)
        check_writable(spark, f"operator {uid!r}")
        arrow = arrow_schema(spark)
    except ConfigurationError:
        raise
    except Exception as error:
        refuse_in_pipeline(error, f"operator {uid!r}")
        raise ConfigurationError(
            f"operator {uid!r}: the output schema {schema!r} does not parse: {_reason(error)}. "
            "Write it like 'user string, n long', with string in place of char and varchar, or "
            "pass a StructType"
        ) from error
    if not len(spark):
        raise ConfigurationError(f"operator {uid!r}: the output schema has no columns")
    if len(set(spark.names)) < len(spark.names):
        raise ConfigurationError(
            f"operator {uid!r}: the output schema has two columns of one name: {spark.names}"
        )
    return OutputSchema(spark, arrow, declared_types(schema, spark))


def _reason(error: Exception) -> str:
    """Return the line of a Spark error that gives the reason; py4j's first line never does."""
    lines = [line.strip(" :.") for line in str(error).splitlines()]
    reasons = [line for line in lines if line and not line.startswith("An error occurred while")]
    return reasons[0] if reasons else repr(error)


def plan(inputs: Sequence[Input], options: KeyedOptions) -> DataFrame:
    """Return the routed DataFrame that the operator's workers read.

    Raises `ConfigurationError` if two input columns have one name or a name is reserved.
    """
    for one in inputs:
        _check_columns(one, options.uid)
    sides = [_side(position, inputs, options) for position in range(len(inputs))]
    united = sides[0] if len(sides) == 1 else _united(*sides)
    if inputs[0].df.isStreaming and not is_connect(united.sparkSession):
        pulse = _observed(_pulse(united.sparkSession, options), "subtasks", options)
        # The pulse comes second: the tasks of an operator above have the numbers of its subtasks.
        rows = united.unionByName(pulse, allowMissingColumns=True)
    else:
        rows = _observed(united, "rows_in", options)
    if options.ticks_ms is not None:
        # Last: a source that comes after others leaves them their places in a checkpoint.
        ticks = ticks_of(rows, options.ticks_ms, options.uid)
        if ticks is not None:
            rows = rows.unionByName(_for_subtasks(ticks, options), allowMissingColumns=True)
    group = f"({HiddenColumns.TIME_AND_GROUP} & {(1 << GROUP_BITS) - 1})"
    subtask = F.expr(
        f"cast(({group} * {options.parallelism}) div {options.max_parallelism} as int)"
    )
    return route(rows, subtask, options.parallelism)


def _observed(df: DataFrame, counted: str, options: KeyedOptions) -> DataFrame:
    """Return ``df`` with the node that marks a plan, and progress events, as the operator's."""
    count = F.expr(f"count(1) AS {counted}")  # `alias` costs pyspark ten calls of the JVM
    return df.observe(rows_name(options.uid, options.keyed_uuid), count)


def _check_columns(one: Input, uid: str) -> None:
    names = one.df.columns
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"operator {uid!r}: the input has two columns of one name: {', '.join(names)}"
        )
    taken = [name for name in names if name.startswith(HiddenColumns.PREFIX)]
    if taken:
        raise ConfigurationError(
            f"operator {uid!r}: the input has columns of reserved names: {', '.join(taken)}"
        )


def _side(position: int, inputs: Sequence[Input], options: KeyedOptions) -> DataFrame:
    """Return one input with the hidden columns."""
    grouped = _grouped(position, inputs, options)
    if not grouped.isStreaming:
        return grouped
    columns = [
        F.col(quoted(name)) for name in grouped.columns if name != HiddenColumns.TIME_AND_GROUP
    ]
    return grouped.select(*columns, _with_time(HiddenColumns.TIME_AND_GROUP))


def _pulse(session: SparkSession, options: KeyedOptions) -> DataFrame:
    """Return the pulse: for each subtask a row without the user's columns."""
    first = _first_group("id", options)
    return streaming_range(session, options.parallelism).select(_with_time(f"({first} | {PULSE}L)"))


def _for_subtasks(ticks: DataFrame, options: KeyedOptions) -> DataFrame:
    """Return ticks with the hidden column alone; a row of theirs reaches each subtask."""
    if not is_connect(ticks.sparkSession):  # they have no rows
        (column,) = ticks.columns
        return ticks.select(F.col(column).alias(HiddenColumns.TIME_AND_GROUP))
    groups = _each_first_group(options, f" | {PULSE}L").alias(HiddenColumns.TIME_AND_GROUP)
    return ticks.select(groups).select(_with_time(HiddenColumns.TIME_AND_GROUP))


def _with_time(group: str) -> Column:
    """Return the column `HiddenColumns.TIME_AND_GROUP`, of an expression without the time."""
    time = f"shiftleft({BATCH_MS}, {TIME_SHIFT})"
    return F.expr(f"{time} | {group} AS {HiddenColumns.TIME_AND_GROUP}")


def _grouped(position: int, inputs: Sequence[Input], options: KeyedOptions) -> DataFrame:
    """Return one input with key groups in `HiddenColumns.TIME_AND_GROUP`, yet without the time."""
    one = inputs[position]
    group = _group(one.keys, options).alias(HiddenColumns.TIME_AND_GROUP)
    columns = [F.col(quoted(name)) for name in one.df.columns]
    if len(inputs) == 1:
        carried = [
            column.alias(one.carried(name))
            for column, name in zip(columns, one.df.columns, strict=True)
        ]
        return one.df.select(*carried, group)
    packed = F.struct(*columns).alias(_PACKED[position])
    return one.df.select(packed, group)


def _united(first: DataFrame, second: DataFrame) -> DataFrame:
    """Return the rows of both inputs; of each the struct of the other input is null.

    Spark adds the null: a cast to the struct's type is refused for some types that it can carry.
    """
    united = first.unionByName(second, allowMissingColumns=True)
    return united.select(*_PACKED, HiddenColumns.TIME_AND_GROUP)


def _group(keys: KeyColumns | None, options: KeyedOptions) -> Column:
    """Return a row's key group; of a broadcast row, make a copy for each subtask's first group."""
    if keys is not None:
        return F.expr(keys.group_expression(options.max_parallelism))
    return _each_first_group(options)


def _each_first_group(options: KeyedOptions, bits: str = "") -> Column:
    """Make a copy of a row for each subtask, with the subtask's first key group and ``bits``."""
    first = _first_group("subtask", options)
    last = options.parallelism - 1
    return F.explode(F.expr(f"transform(sequence(0L, {last}L), subtask -> {first}{bits})"))


def _first_group(subtask: str, options: KeyedOptions) -> str:
    """Return the first key group of a subtask, in SQL."""
    most, parallelism = options.max_parallelism, options.parallelism
    return f"(({subtask} * {most}L + {parallelism - 1}L) div {parallelism}L)"
