"""The two passes over Spark's state: one that checks all rows, and one that writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_engine.versions.cleaning.deletions import delete_or_leave
from forebay_engine.versions.publishing import ImportedPart, ImportTarget, check_vacant, publish
from forebay_spark_runtime.arrow.routing import route
from forebay_spark_runtime.importing.part_task import (
    COUNTED,
    GROUP,
    STATE,
    TIMERS,
    WRITTEN,
    CheckTask,
    ImportPlan,
    WriteTask,
)
from forebay_spark_runtime.importing.tws_query import CONTENT, KEY, TwsQuery
from forebay_spark_runtime.keyed_operator.key_columns import KeyColumns
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay_state_processor.importing.checkpoint_copy import CheckpointCopy

_SHOWN: Final = 10
"""Rows that an error names."""


class Takeover:
    """Spark's state on its way into one version."""

    def __init__(
        self, plan: ImportPlan, found: TwsQuery, keys: KeyColumns, target: ImportTarget
    ) -> None:
        """Raise `ConfigurationError` if there is nothing to import, or state already."""
        self._plan = plan
        self._target = target
        self._storage = plan.reading().storage
        check_vacant(self._storage, target, plan.declared.uid)
        self._rows = _rows(plan, found, keys)

    def check(self, progress: Progress) -> dict[str, int]:
        """Check all rows; return how many there are of each variable.

        Raises `ConfigurationError` that names the first rows that do not fit.
        """
        progress.stage("checking the state")
        answers = self._rows.mapInArrow(CheckTask(self._plan), COUNTED).collect()
        faults = [fault for answer in answers for fault in answer["faults"]]
        if faults:
            raise ConfigurationError(
                f"operator {self._plan.declared.uid!r} cannot take the state over; nothing was "
                "written:\n- " + "\n- ".join(faults[:_SHOWN])
            )
        names = [one.variable for one in self._plan.taken]
        names += [TIMERS] * (self._plan.domain is not None)
        return {
            name: sum(answer["rows"][number] for answer in answers)
            for number, name in enumerate(names)
        }

    def write(self, copied: CheckpointCopy, progress: Progress) -> str:
        """Publish the version and finish the copy of the checkpoint; return the run's key.

        After a failure, neither of them exists. Raises `FencedError` if another run begins
        meanwhile.
        """
        parts: Sequence[ImportedPart] = ()
        try:
            progress.stage("copying the checkpoint")
            copied.begin()
            progress.stage("writing the state")
            parts = self._parts()
            copied.check_unchanged()
            run = self._published(parts)
        except BaseException:
            copied.undo()
            files = [file.name for part in parts for file in part.committed.files]
            delete_or_leave(self._storage, files, "the files belong to no version")
            raise
        copied.finish()
        return run

    def _published(self, parts: Sequence[ImportedPart]) -> str:
        plan = self._plan
        return publish(
            self._storage,
            self._target,
            parts,
            uid=plan.declared.uid,
            backend=plan.settings["state.backend"],
            now_us=plan.now_us,
        )

    def _parts(self) -> Sequence[ImportedPart]:
        plan = self._plan
        subtask = F.expr(f"cast(({GROUP} * {plan.parallelism}) div {plan.max_parallelism} as int)")
        routed = route(self._rows, subtask, plan.parallelism)
        answers: list[Any] = routed.mapInArrow(WriteTask(plan), WRITTEN).collect()
        made = [ImportedPart.unpacked(bytes(answer["part"])) for answer in answers]
        parts = {part.subtask: part for part in made}
        # Spark leaves out tasks without rows.
        return [parts.get(n) or plan.part(n, iter(())) for n in range(plan.parallelism)]


def _rows(plan: ImportPlan, found: TwsQuery, keys: KeyColumns) -> DataFrame:
    """Return the rows of all variables, as `part_task` documents them."""
    frames = [found.variables[one.variable].rows for one in plan.taken]
    if plan.domain is not None:
        assert found.timers is not None
        frames.append(found.timers)
    if not frames:
        raise ConfigurationError(
            f"operator {plan.declared.uid!r}: everything is left behind, so there is nothing to "
            "import"
        )
    # Under names of our own: a grouping column may have any name.
    named = KeyColumns(tuple(f"{KEY}_{at}" for at in range(len(keys.names))), keys.types)
    columns_of_key = [
        F.col(KEY).getField(name).alias(new)
        for name, new in zip(keys.names, named.names, strict=True)
    ]
    group = F.expr(named.group_expression(plan.max_parallelism)).alias(GROUP)
    kinds = [frame.schema[CONTENT].dataType for frame in frames]
    united = None
    for number, frame in enumerate(frames):
        columns = [
            (F.col(CONTENT) if at == number else F.lit(None).cast(kind)).alias(f"{CONTENT}_{at}")
            for at, kind in enumerate(kinds)
        ]
        state = F.lit(number).alias(STATE)
        part = frame.select(KEY, CONTENT, *columns_of_key).select(state, group, KEY, *columns)
        united = part if united is None else united.union(part)
    assert united is not None
    return united
