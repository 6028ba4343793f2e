"""DataFrames as the tables of an import: rows go to the tasks of their parts, which answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_engine.configuring import resolve_with_plugins
from forebay_engine.versions.cleaning.deletions import delete_or_leave
from forebay_spark_runtime.arrow.routing import route
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.options import checked_dataframe, shared_directory
from forebay_spark_runtime.driver.shipping import shipped
from forebay_spark_runtime.importing.table_task import ANSWER, TABLE, PartAnswer, TableTask
from forebay_spark_runtime.keyed_operator.key_columns import KeyColumns, key_columns
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.importing.tables import TableLayout
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay_engine.versions.publishing import ImportedPart
    from forebay_spark_runtime.importing.table_task import ImportPlan

_KEY = "key"
_GROUP = "key_group"


@attrs.frozen
class Frames:
    """The DataFrames of one import."""

    frames: Sequence[DataFrame]
    layouts: Sequence[TableLayout]
    call: str
    """The function that was called, for messages."""

    @classmethod
    def of(
        cls,
        tables: DataFrame | Mapping[str, DataFrame],
        timers: DataFrame | None,
        call: str,
    ) -> Frames:
        """Check what a caller passes; raises `ConfigurationError`."""
        named = tables if isinstance(tables, Mapping) else {None: tables}
        given = [(name, frame, False) for name, frame in named.items()]
        if timers is not None:
            given.append((None, timers, True))
        if not given:
            raise ConfigurationError("nothing to import: give a DataFrame")
        for _, frame, _ in given:
            checked_dataframe(frame, f"{call} takes DataFrames of Spark")
            if frame.isStreaming:
                raise ConfigurationError(f"{call} takes bounded DataFrames, not streams")
        layouts = [
            TableLayout(columns=frame.columns, state=name, is_timers=is_timers)
            for name, frame, is_timers in given
        ]
        return cls([frame for _, frame, _ in given], layouts, call)

    @property
    def session(self) -> Any:
        """The session of the DataFrames."""
        return self.frames[0].sparkSession

    def operator(self, query: str, uid: str, overrides: Mapping[str, str | None]) -> OperatorSource:
        """Return an operator in the state directory of the session."""
        given = sessions.configuration(self.session)
        settings = resolve_with_plugins(given, overrides=dict(overrides))
        directory = shared_directory(settings, uid)
        return OperatorSource.with_settings(directory, query=query, uid=uid, settings=settings)

    def keys(self, uid: str) -> list[KeyColumns]:
        """Return the key columns of each DataFrame."""
        return [_keys(frame, uid) for frame in self.frames]

    @contextlib.contextmanager
    def parts(
        self, keys: Sequence[KeyColumns], plan: ImportPlan
    ) -> Iterator[tuple[list[PartAnswer], list[ImportedPart]]]:
        """Run the tasks; yield their answers, and what was written of each subtask.

        Raises `ConfigurationError` for a row that does not fit. If the block fails, too, the files
        are deleted.
        """
        task = shipped(TableTask(plan), self.call)
        rows = self._rows(keys, plan)
        answers = [PartAnswer.of_row(row) for row in rows.mapInArrow(task, ANSWER).collect()]
        made = {one.part.subtask: one.part for one in answers if one.part is not None}
        try:
            _check(answers, plan)
            yield answers, [] if plan.dry_run else _all(made, plan)
        except BaseException:
            written = [file for part in made.values() for file in part.committed.files]
            files = [file.name for file in written if file.data is None]
            delete_or_leave(plan.read.storage, files, "the files belong to no version")
            raise

    def _rows(self, keys: Sequence[KeyColumns], plan: ImportPlan) -> DataFrame:
        """Return the rows of all tables, each subtask's in the partition of its number."""
        frames = self.frames
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


def _keys(frame: DataFrame, uid: str) -> KeyColumns:
    names = [_KEY]
    if _KEY not in frame.columns:
        parts = range(1, len(frame.columns) + 1)
        names = [name for at in parts if (name := f"{_KEY}_{at}") in frame.columns] or [_KEY]
    return key_columns(frame.schema, names, uid)


def _check(answers: Sequence[PartAnswer], plan: ImportPlan) -> None:
    """Raise the first fault; `ConfigurationError`."""
    faults = [one.fault for one in answers if one.fault is not None]
    if faults:
        more = f" ({len(faults) - 1} more parts have such rows)" if len(faults) > 1 else ""
        raise ConfigurationError(f"operator {plan.uid!r}: {faults[0]}{more}; nothing was imported")


def _all(made: dict[int, ImportedPart], plan: ImportPlan) -> list[ImportedPart]:
    """Return all parts; Spark runs no tasks without rows, so their parts are written here."""
    for subtask in range(plan.parallelism):
        if subtask not in made:
            part = plan.answer(subtask, iter(())).part
            assert part is not None
            made[subtask] = part
    return [made[subtask] for subtask in range(plan.parallelism)]


def rows_of(answers: Sequence[PartAnswer]) -> dict[str, int]:
    """Return state → the rows of all parts."""
    states = dict.fromkeys(state for one in answers for state in one.rows)
    return {state: sum(one.rows.get(state, 0) for one in answers) for state in states}
