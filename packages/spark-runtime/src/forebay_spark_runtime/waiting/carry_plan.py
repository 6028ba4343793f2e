"""The driver's part of ``pending="carry"``: its checked arguments, and the routing of rows."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime.arrow.routing import route
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.operator_names import rows_name
from forebay_spark_runtime.driver.options import KeyedOptions, operator_options
from forebay_spark_runtime.driver.service_outages import packed_reports
from forebay_spark_runtime.waiting.options import CARRY
from forebay_state_api.calls.policies import seconds
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_spark_runtime.waiting.options import WaitOptions
    from forebay_spark_runtime.waiting.pending_rows import Columns
    from forebay_spark_runtime.waiting.spec import WaitSpec

MAX_SUBTASKS: Final = 128
"""The max parallelism of operators without keys, and so their largest number of subtasks."""

CARRY_AFTER_S: Final = 1.0
"""Default seconds after the last row was taken until late rows are carried over."""


@attrs.frozen(kw_only=True)
class Carrying:
    """The arguments that only a carrying operator has."""

    options: KeyedOptions
    carry_after_s: float


def check_pending(df: DataFrame, spec: WaitSpec, options: WaitOptions) -> Carrying | None:
    """Check ``pending`` and the options for it.

    Returns ``None`` for a wait that carries nothing over. Raises `ConfigurationError`.
    """
    if options.pending == CARRY:
        _check_possible(df, spec, options.uid)
        return Carrying(
            options=attrs.evolve(
                _operator_options(df, options),
                keyed_uuid=str(uuid.uuid4()),
                outages=packed_reports(df.sparkSession),
            ),
            carry_after_s=_carry_after_s(options, spec.name),
        )
    stored = {"uid": options.uid, "state_dir": options.state_dir}
    given = {
        **({} if options.keep_answers is not None else stored),
        "parallelism": options.parallelism,
        "carry_after": options.carry_after,
        "new_state": None if options.new_state is False else options.new_state,
    }
    named = [f"{name}=" for name, value in given.items() if value is not None]
    if named:
        raise ConfigurationError(
            f"{spec.name}: {', '.join(named)} go with pending='carry', and uid= and state_dir= "
            "with keep_answers= as well; a wait without them stores nothing"
        )
    return None


def _operator_options(df: DataFrame, options: WaitOptions) -> KeyedOptions:
    return operator_options(
        df,
        uid=options.uid,
        parallelism=options.parallelism,
        max_parallelism=MAX_SUBTASKS,
        query=None,
        batch_id=None,
        order_by=None,
        new_state=options.new_state,
        overrides={"state.dir": options.state_dir},
    )


def _carry_after_s(options: WaitOptions, name: str) -> float:
    given = CARRY_AFTER_S if options.carry_after is None else options.carry_after
    return seconds(given, f"{name}: carry_after")


def columns_of(df: DataFrame) -> Columns:
    """Return the names and types of the input columns, as they are stored with pending rows."""
    return [(field.name, field.dataType.simpleString()) for field in df.schema]


def routed_to_subtasks(df: DataFrame, partition: str, options: KeyedOptions) -> DataFrame:
    """Return ``df`` in one partition for each subtask; all subtasks run in every micro-batch.

    Column ``partition`` holds the input partition of each row. All rows of an input partition go to
    the same subtask.
    """
    rows_in = F.count(F.lit(1)).alias("rows_in")
    # Without this node an empty micro-batch runs no task, and pending rows would go on waiting.
    observed = df.observe(rows_name(options.uid, options.keyed_uuid), rows_in)
    subtask = F.expr(f"cast({partition} % {options.parallelism} as int)")
    return route(observed, subtask, options.parallelism)


def _check_possible(df: DataFrame, spec: WaitSpec, uid: Any) -> None:
    name = spec.name
    if not df.isStreaming:
        raise ConfigurationError(
            f"{name}: pending='carry' needs a stream: rows are left to the next micro-batch, and a "
            "bounded DataFrame, also in foreachBatch, has none. Use pending='wait'"
        )
    if sessions.is_connect(df.sparkSession):
        raise ConfigurationError(
            f"{name}: pending='carry' needs a classic session: under Spark Connect it is not known "
            "whether the query's trigger ends it. Use pending='wait'"
        )
    if not spec.asynchronous:
        raise ConfigurationError(
            f"{name}: pending='carry' needs an async function: the call of a plain one cannot be "
            "cancelled, and would still run during the call of the next micro-batch"
        )
    if not isinstance(uid, str) or not uid:
        raise ConfigurationError(
            f"{name}: pending='carry' needs uid=, a name under which the stored rows are found "
            f"after a restart, not {uid!r}"
        )
