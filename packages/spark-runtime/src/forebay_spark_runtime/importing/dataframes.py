"""Import DataFrames as the first version of an operator: one part in each task."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.execution.arguments import checked_parallelism, checked_uid
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.importing.frames import Frames, rows_of
from forebay_spark_runtime.importing.table_task import ImportPlan
from forebay_state_api.plugins import plugins
from forebay_state_processor.importing.first_version import (
    FIRST,
    Imported,
    NewOperator,
    Position,
    check_savepoint,
    new_operator,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay_engine.versions.publishing import ImportedPart
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_processor.importing.checked_tables import CheckedTables
    from forebay_state_processor.importing.declared_states import DeclaredStates
    from forebay_state_processor.reading.snapshot import Snapshot
    from forebay_state_processor.reading.stored_states import StateInfo


@attrs.frozen(kw_only=True)
class FirstVersionPlan(ImportPlan):
    """Writes the parts of an operator's first version."""

    declared: DeclaredStates
    position: Position = FIRST

    @cached_property
    def operator(self) -> NewOperator:
        """The operator that is made."""
        return NewOperator(
            at=self.read,
            backend=plugins().backend(self.settings["state.backend"]),
            declared=self.declared,
            max_parallelism=self.max_parallelism,
            now_us=self.now_us,
            position=self.position,
        )

    @property
    def states(self) -> Mapping[str, StateInfo]:
        """The states that the function declares."""
        return self.operator.states

    @property
    def key(self) -> ValueCodec:
        """The codec of the keys that were named."""
        return self.operator.key

    def write(self, tables: CheckedTables, subtask: int, groups: KeyGroupRange) -> ImportedPart:
        """Write the rows into an empty backend."""
        return self.operator.write(tables, 0, groups, subtask)


def import_state(
    tables: DataFrame | Mapping[str, DataFrame],
    *,
    query: str,
    uid: str,
    timers: DataFrame | None = None,
    function: Any = None,
    key: Any = None,
    like: Snapshot | None = None,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    state_dir: str | None = None,
    backend: str | None = None,
    savepoint: str | None = None,
    dry_run: bool = False,
) -> Imported:
    """Make DataFrames the first version of an operator that does not exist yet.

    The query that starts with this name and uid begins with it. Rows are shuffled by key group;
    each task checks the rows of one part, and then writes it. The version appears when all parts
    are there.

    :param tables: a DataFrame with a column for each of several states, where null is no content;
        or state → a DataFrame with the column ``value``. Their other columns are those of
        `Snapshot.table` and `Snapshot.to_arrow`.
    :param query: the name that the query passes as ``query=``; or, for an operator that is added to
        a query, the query's id.
    :param uid: the operator's uid.
    :param timers: a DataFrame of timers, in the columns of `Snapshot.timer_table`.
    :param function: the query's function, or its class; its ``open`` is called on the driver.
    :param key: the type of the key column, with ``function``; default: the type of the tables'
        columns.
    :param like: an open snapshot of an operator with the same states, in place of ``function``.
    :param parallelism: the number of parts; a task needs memory for one of them. Default: Spark's
        default parallelism.
    :param max_parallelism: the operator's number of key groups; default: as ``like`` has, or 128.
    :param state_dir: the state directory; default: the setting ``spark.forebay.state.dir``.
    :param backend: the state backend; default: the setting ``spark.forebay.state.backend``.
    :param savepoint: a name that keeps the version, as for the command.
    :param dry_run: check everything, and write nothing.

    Raises `ConfigurationError` for a row that does not fit, after the files of the other parts are
    deleted again, and for an operator that has state; `FencedError` if a query or another import
    begins meanwhile.
    """
    uid = checked_uid(uid)
    given = Frames.of(tables, timers, "import_state()")
    at = given.operator(query, uid, {"state.dir": state_dir, "state.backend": backend})
    keys = given.keys(uid)
    if function is not None and key is None:
        key = keys[0].stored_type()
    new = new_operator(at, function=function, key=key, like=like, max_parallelism=max_parallelism)
    check_savepoint(savepoint)
    new.check_timers(given=timers is not None)
    groups = new.max_parallelism
    if parallelism is None:
        parallelism = min(sessions.default_parallelism(given.session), groups)
    plan = FirstVersionPlan(
        declared=new.declared,
        layouts=given.layouts,
        state_dir=at.settings["state.dir"],
        query=query,
        uid=uid,
        settings=at.settings,
        parallelism=checked_parallelism(parallelism, groups, uid),
        max_parallelism=groups,
        now_us=new.now_us,
        dry_run=dry_run,
    )
    plan.tables(new.ranges(1)[0]).close()
    with given.parts(keys, plan) as (answers, parts):
        run = None if dry_run else plan.operator.publish(parts, savepoint)
    timers_count = sum(one.timers for one in answers)
    return Imported(version=1, run=run, rows=rows_of(answers), timers=timers_count)
