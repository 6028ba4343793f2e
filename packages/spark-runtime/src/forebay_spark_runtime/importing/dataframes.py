"""Import DataFrames as the first version of an operator: one part in each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime.arrow.routing import route
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.options import (
    checked_dataframe,
    shared_directory,
)
from forebay_spark_runtime.driver.shipping import shipped
from forebay_spark_runtime.importing.table_task import (
    ANSWER,
    TABLE,
    PartAnswer,
    TablePlan,
    TableTask,
)
from forebay_spark_runtime.keyed_operator.key_columns import KeyColumns, key_columns
from forebay_state_api.engine.arguments import (
    checked_max_parallelism,
    checked_parallelism,
    checked_uid,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.importing.first_version import Imported, check_savepoint, new_operator
from forebay_state_api.importing.tables import TableLayout
from forebay_state_api.plugins import plugins
from forebay_state_api.reading.choosing import ReadFrom
from forebay_state_api.settings import resolve_settings
from forebay_state_api.versions.leftovers import delete_or_leave

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay_state_api.reading.snapshot import Snapshot
    from forebay_state_api.versions.imported import ImportedPart

_KEY = "key"
_GROUP = "key_group"


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
    :param key: the type of the key column, with ``function``; default: that of the tables' columns.
    :param like: an open snapshot of an operator with the same states, in place of ``function``.
    :param parallelism: the number of parts; a task needs memory for one of them. Default: Spark's
        default parallelism.
    :param max_parallelism: the operator's number of key groups; default: that of ``like``, or 128.
    :param state_dir: the state directory; default: the setting ``spark.forebay.state.dir``.
    :param backend: the state backend; default: the setting ``spark.forebay.state.backend``.
    :param savepoint: a name that keeps the version, as for the command.
    :param dry_run: check everything, and write nothing.

    Raises `ConfigurationError` for a row that does not fit, after the files of the other parts are
    deleted again, and for an operator that has state; `FencedError` if a query or another import
    begins meanwhile.
    """
    uid = checked_uid(uid)
    frames, layouts = _given(tables, timers)
    session = frames[0].sparkSession
    at = _operator(session, query, uid, {"state.dir": state_dir, "state.backend": backend})
    keys = [_keys(frame, uid) for frame in frames]
    if function is not None and key is None:
        key = keys[0].key_type()
    most = None if max_parallelism is None else checked_max_parallelism(max_parallelism, uid)
    new = new_operator(at, function=function, key=key, like=like, max_parallelism=most)
    check_savepoint(savepoint)
    new.check_timers(given=timers is not None)
    groups = new.max_parallelism
    if parallelism is None:
        parallelism = min(sessions.default_parallelism(session), groups)
    plan = TablePlan(
        declared=new.declared,
        layouts=layouts,
        state_dir=at.settings["state.dir"],
        query=query,
        settings=at.settings,
        parallelism=checked_parallelism(parallelism, groups, uid),
        max_parallelism=groups,
        now_us=new.now_us,
        dry_run=dry_run,
    )
    plan.tables(new.ranges(1)[0]).close()
    return _imported(plan, _rows(frames, keys, plan), savepoint)


def _given(
    tables: DataFrame | Mapping[str, DataFrame], timers: DataFrame | None
) -> tuple[list[DataFrame], list[TableLayout]]:
    """Return all DataFrames, and the layout of each."""
    named = tables if isinstance(tables, Mapping) else {None: tables}
    given = [(name, frame, False) for name, frame in named.items()]
    if timers is not None:
        given.append((None, timers, True))
    if not given:
        raise ConfigurationError("nothing to import: give a DataFrame")
    for _, frame, _ in given:
        checked_dataframe(frame, "import_state() takes DataFrames of Spark")
        if frame.isStreaming:
            raise ConfigurationError("import_state() takes bounded DataFrames, not streams")
    layouts = [
        TableLayout(columns=frame.columns, state=name, is_timers=is_timers)
        for name, frame, is_timers in given
    ]
    return [frame for _, frame, _ in given], layouts


def _operator(session: Any, query: str, uid: str, overrides: Mapping[str, str | None]) -> ReadFrom:
    given = sessions.configuration(session)
    backends = {**plugins().backends(), **plugins().compaction_services()}
    settings = resolve_settings(given, overrides=dict(overrides), backends=backends)
    directory = shared_directory(settings, uid)
    return ReadFrom.with_settings(directory, query=query, uid=uid, settings=settings)


def _keys(frame: DataFrame, uid: str) -> KeyColumns:
    names = [_KEY]
    if _KEY not in frame.columns:
        parts = range(1, len(frame.columns) + 1)
        names = [name for at in parts if (name := f"{_KEY}_{at}") in frame.columns] or [_KEY]
    return key_columns(frame.schema, names, uid)


def _rows(frames: Sequence[DataFrame], keys: Sequence[KeyColumns], plan: TablePlan) -> DataFrame:
    """Return the rows of all tables, each subtask's in the partition of its number."""
    structs = [F.struct(*(F.col(f"`{name}`") for name in frame.columns)) for frame in frames]
    kinds = [
        frame.select(one.alias("row")).schema["row"].dataType
        for frame, one in zip(frames, structs, strict=True)
    ]
    united: DataFrame | None = None
    for number, frame in enumerate(frames):
        columns = [
            structs[number] if at == number else F.lit(None).cast(kind)
            for at, kind in enumerate(kinds)
        ]
        rows = frame.select(
            F.lit(number).alias(TABLE),
            F.expr(keys[number].group_expression(plan.max_parallelism)).alias(_GROUP),
            *(column.alias(f"row_{at}") for at, column in enumerate(columns)),
        )
        united = rows if united is None else united.union(rows)
    assert united is not None
    subtask = f"cast(({_GROUP} * {plan.parallelism}) div {plan.max_parallelism} as int)"
    return route(united, F.expr(subtask), plan.parallelism).drop(_GROUP)


def _imported(plan: TablePlan, rows: DataFrame, savepoint: str | None) -> Imported:
    """Run the tasks, and publish what they wrote."""
    task = shipped(TableTask(plan), "import_state()")
    answers = [PartAnswer.of_row(row) for row in rows.mapInArrow(task, ANSWER).collect()]
    made = {one.part.subtask: one.part for one in answers if one.part is not None}
    try:
        _check(answers, plan)
        run = None if plan.dry_run else plan.operator.publish(_all(made, plan), savepoint)
    except BaseException:
        files = [file.name for part in made.values() for file in part.committed.files]
        delete_or_leave(plan.operator.at.storage, files, "the files belong to no version")
        raise
    return Imported(
        version=1,
        run=run,
        rows={
            state: sum(one.rows.get(state, 0) for one in answers)
            for state in dict.fromkeys(state for one in answers for state in one.rows)
        },
        timers=sum(one.timers for one in answers),
    )


def _check(answers: Sequence[PartAnswer], plan: TablePlan) -> None:
    """Raise the first fault; `ConfigurationError`."""
    faults = [one.fault for one in answers if one.fault is not None]
    if faults:
        more = f" ({len(faults) - 1} more parts have such rows)" if len(faults) > 1 else ""
        raise ConfigurationError(f"operator {plan.declared.uid!r}: {faults[0]}{more}")


def _all(made: dict[int, ImportedPart], plan: TablePlan) -> list[ImportedPart]:
    """Return all parts; Spark leaves out tasks without rows, so those are written here."""
    for subtask in range(plan.parallelism):
        if subtask not in made:
            part = plan.answer(subtask, iter(())).part
            assert part is not None
            made[subtask] = part
    return [made[subtask] for subtask in range(plan.parallelism)]
