"""The tasks of an import on Spark: check rows of Spark's state, and write one subtask's part.

The rows of all variables come in one DataFrame: the number of the state, the key group, the key,
and a column for each variable, of which one is filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from forebay_spark_runtime.arrow.rows_in import shown
from forebay_spark_runtime.importing.cells import (
    MISFITS,
    UnfitRowError,
    contents_of,
    contents_reader,
    keys_of,
)
from forebay_spark_runtime.importing.tws_query import KEY
from forebay_spark_runtime.worker_process.garbage_collection import begin_task, loading
from forebay_spark_runtime.worker_process.task_errors import ready_for_spark
from forebay_state_api.contract.backend import NO_TIME, Opening
from forebay_state_api.contract.changes import Changes
from forebay_state_api.keys import key_group_range_of
from forebay_state_api.plugins import plugins
from forebay_state_processor.importing.subtask_part import ImportedTimer, PartWriter, number_of
from forebay_state_processor.reading.version_choice import ReadFrom

if TYPE_CHECKING:
    from forebay_engine.versions.publishing import ImportedPart
    from forebay_spark_runtime.importing.mapping import TakenState
    from forebay_state_api.job.timers import TimeDomain
    from forebay_state_api.settings import Settings
    from forebay_state_processor.importing.declared_states import DeclaredStates
    from forebay_state_processor.reading.stored_states import StateInfo

STATE: Final = "state"
GROUP: Final = "key_group"
TIMERS: Final = "timers"
"""Their name among variables."""
FIRST: Final = 3
"""The position of the first variable's column; the last column has timers."""
FAULTS: Final = 3
"""The faults that one task reports."""

COUNTED: Final = "rows array<bigint>, faults array<string>"
WRITTEN: Final = "part binary"


@attrs.frozen(kw_only=True)
class ImportPlan:
    """Everything that a task needs; it is sent to the workers."""

    declared: DeclaredStates
    taken: Sequence[TakenState]
    """The variables that are taken over, in the order of their columns."""
    domain: TimeDomain | None
    """The domain of timers; ``None`` without timers."""
    state_dir: str
    query: str
    settings: Settings = attrs.field(repr=False)
    version: int
    parallelism: int
    max_parallelism: int
    now_us: int
    watermark_us: int

    def reading(self) -> ReadFrom:
        """Open the operator's folder."""
        return ReadFrom.with_settings(
            self.state_dir, query=self.query, uid=self.declared.uid, settings=self.settings
        )

    def infos(self) -> list[StateInfo]:
        """Return the states, in the order of the variables' columns."""
        infos = self.declared.infos()
        return [infos[one.state] for one in self.taken]

    def part(self, subtask: int, batches: Iterator[pa.RecordBatch]) -> ImportedPart:
        """Write the part of one subtask, whose rows ``batches`` are."""
        backend = plugins().backend(self.settings["state.backend"])
        with PartWriter(backend, self._opening(subtask, backend)) as writer:
            for info in self.infos():
                writer.declare(info.spec)
            timers = self._fill(writer, batches)
            if self.domain is not None:
                writer.add_timers(self.declared.key_codec(), timers)
            return writer.commit(
                self.version,
                subtask,
                ttl_us=self.declared.ttl_us,
                now_us=self.now_us,
                watermark_us=self.watermark_us,
            )

    def _fill(self, writer: PartWriter, batches: Iterator[pa.RecordBatch]) -> list[ImportedTimer]:
        """Store the cells; return the timers."""
        timers: list[ImportedTimer] = []
        rows = _Rows(self)
        for batch in batches:
            for found in rows.of(batch):
                if found.info is not None:
                    cells = zip(found.keys, found.groups, found.contents, strict=True)
                    changes = Changes.whole(found.info.shape, None, cells)
                    writer.apply(found.info.spec, changes)
                else:
                    timers += self._timers(found)
        return timers

    def _timers(self, found: _StateRows) -> Iterator[ImportedTimer]:
        assert self.domain is not None
        domain = number_of(self.domain)
        for key, group, at_ms in zip(found.keys, found.groups, found.contents, strict=True):
            yield ImportedTimer(group, domain, at_ms * 1_000, key)

    def _opening(self, subtask: int, backend: Any) -> Opening:
        reading = self.reading()
        return Opening(
            storage=reading.storage,
            path=f"{reading.storage.url}#import",
            uid=self.declared.uid,
            version=0,
            range=key_group_range_of(subtask, self.parallelism, self.max_parallelism),
            parents=(),
            options=reading.options_of(backend),
            now_us=NO_TIME,
            cache_bytes=0,
        )


@attrs.frozen(kw_only=True)
class _StateRows:
    """The rows of one state in a batch, converted."""

    info: StateInfo | None
    """The state; ``None`` if they are timers."""
    keys: Sequence[Any]
    groups: Sequence[int]
    contents: Sequence[Any]


class _Rows:
    """Converts batches."""

    def __init__(self, plan: ImportPlan) -> None:
        self._plan = plan
        self._infos = plan.infos()
        self._readers: dict[int, Any] = {}

    def of(self, batch: pa.RecordBatch) -> Iterator[_StateRows]:
        """Yield the rows of each state in a batch; raises `UnfitRowError` that names the row."""
        for number in pc.unique(batch.column(STATE)).to_pylist():
            yield self._converted(number, batch.filter(pc.equal(batch.column(STATE), number)))

    def _converted(self, number: int, batch: pa.RecordBatch) -> _StateRows:
        name, info = self.name(number), None
        key, column = batch.column(KEY), batch.column(FIRST + number)
        try:
            keys = contents_of(keys_of, key)
            if number < len(self._infos):
                info = self._infos[number]
                contents = contents_of(self._reader(number, column.type), column)
            else:
                contents = column.to_pylist()
        except UnfitRowError as error:
            text = f"{name}, key {_shown(key, error.position)}: {error}"
            raise UnfitRowError(error.position, text) from error
        groups = batch.column(GROUP).to_pylist()
        return _StateRows(info=info, keys=keys, groups=groups, contents=contents)

    def name(self, number: int) -> str:
        """Return Spark's name of a state."""
        taken = self._plan.taken
        return taken[number].variable if number < len(taken) else TIMERS

    def _reader(self, number: int, kind: pa.DataType) -> Any:
        if number not in self._readers:
            ttl_us = self._plan.taken[number].ttl_us
            self._readers[number] = contents_reader(self._infos[number], kind, ttl_us)
        return self._readers[number]


def _shown(keys: pa.StructArray, position: int) -> str:
    """Return the columns of a key as text for an error, even if they are invalid."""
    try:
        return repr(dict(keys[position].as_py()))
    except MISFITS:
        return shown(keys.slice(position, 1))


@attrs.frozen
class CheckTask:
    """Checks rows, and counts them by state."""

    plan: ImportPlan

    @ready_for_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of `COUNTED`."""
        rows = _Rows(self.plan)
        counts = [0] * (len(self.plan.taken) + 1)
        faults: list[str] = []
        for batch in batches:
            for counted in pc.value_counts(batch.column(STATE)).to_pylist():
                counts[counted["values"]] += counted["counts"]
            try:
                for _ in rows.of(batch):
                    pass
            except UnfitRowError as error:
                faults.append(str(error))
                if len(faults) == FAULTS:
                    break
        yield pa.RecordBatch.from_pydict(
            {"rows": [counts], "faults": [faults]},
            schema=pa.schema({"rows": pa.list_(pa.int64()), "faults": pa.list_(pa.string())}),
        )


@attrs.frozen
class WriteTask:
    """Writes the part of the subtask whose number is the partition's."""

    plan: ImportPlan

    @ready_for_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of `WRITTEN`."""
        context = TaskContext.get()
        assert context is not None
        with loading(begin_task()):  # the part's cells stay until it is written
            part = self.plan.part(context.partitionId(), batches)
        yield pa.RecordBatch.from_pydict({"part": [part.packed()]})
