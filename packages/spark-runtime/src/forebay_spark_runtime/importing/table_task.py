"""The tasks of an import of DataFrames: each checks one part's rows of all tables, and writes them.

The rows come in one DataFrame: the number of the table, and a struct for each table, of which one
is filled.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from forebay_engine.versions.publishing import ImportedPart
from forebay_spark_runtime.worker_process.garbage_collection import begin_task, loading
from forebay_spark_runtime.worker_process.task_errors import ready_for_spark
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import key_group_range_of
from forebay_state_processor.importing.checked_tables import CheckedTables
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.settings import Settings
    from forebay_state_processor.importing.tables import TableLayout
    from forebay_state_processor.reading.stored_states import StateInfo

TABLE: Final = "table"
FIRST: Final = 1
"""The position of the first table's struct."""
ANSWER: Final = "part binary, rows map<string,bigint>, timers bigint, fault string"
_ANSWER: Final = pa.schema(
    {
        "part": pa.binary(),
        "rows": pa.map_(pa.string(), pa.int64()),
        "timers": pa.int64(),
        "fault": pa.string(),
    }
)


@attrs.frozen(kw_only=True)
class PartAnswer:
    """The result of one task."""

    part: ImportedPart | None = None
    """The part; ``None`` if nothing was written."""
    rows: Mapping[str, int] = attrs.field(factory=dict)
    """State → the number of its rows."""
    timers: int = 0
    fault: str | None = None
    """The reason why a row does not fit."""

    def batch(self) -> pa.RecordBatch:
        """Return the answer as one row of `ANSWER`."""
        part = None if self.part is None else self.part.packed()
        row = {"part": part, "rows": [*self.rows.items()], "timers": self.timers}
        return pa.RecordBatch.from_pylist([row | {"fault": self.fault}], schema=_ANSWER)

    @classmethod
    def of_row(cls, row: Any) -> PartAnswer:
        """Decode the result of `batch` from a collected row."""
        part = None if row["part"] is None else ImportedPart.unpacked(bytes(row["part"]))
        return cls(part=part, rows=row["rows"], timers=row["timers"], fault=row["fault"])


@attrs.frozen(kw_only=True)
class ImportPlan(abc.ABC):
    """Everything that a task needs; it is sent to the workers."""

    state_dir: str
    query: str
    uid: str
    settings: Settings = attrs.field(repr=False)
    layouts: Sequence[TableLayout]
    """The tables, by number."""
    parallelism: int
    max_parallelism: int
    now_us: int
    """The time of last access of content without one."""
    dry_run: bool

    @cached_property
    def read(self) -> OperatorSource:
        """The operator's folder."""
        return OperatorSource.with_settings(
            self.state_dir, query=self.query, uid=self.uid, settings=self.settings
        )

    @property
    @abc.abstractmethod
    def states(self) -> Mapping[str, StateInfo]:
        """The operator's states by name."""

    @property
    @abc.abstractmethod
    def key(self) -> ValueCodec:
        """The codec of keys."""

    @abc.abstractmethod
    def write(self, tables: CheckedTables, subtask: int, groups: KeyGroupRange) -> ImportedPart:
        """Write the files of a subtask, whose rows all ``tables`` have."""

    def tables(self, groups: KeyGroupRange) -> CheckedTables:
        """Return the tables of one part, without rows."""
        return CheckedTables(
            self.layouts,
            self.states,
            self.key,
            [groups],
            groups=self.max_parallelism,
            now_us=self.now_us,
            numbered=False,
        )

    def answer(self, subtask: int, batches: Iterator[pa.RecordBatch]) -> PartAnswer:
        """Check the rows of one subtask, and write its part."""
        groups = key_group_range_of(subtask, self.parallelism, self.max_parallelism)
        with self.tables(groups) as tables:
            try:
                for number, rows in _by_table(batches):
                    tables.add(number, rows.select(tables.columns[number]))
                tables.finish()
            except ConfigurationError as error:
                return PartAnswer(fault=str(error))
            part = None if self.dry_run else self.write(tables, subtask, groups)
            return PartAnswer(part=part, rows=tables.rows, timers=tables.timers)


def _by_table(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of one table after another."""
    for batch in batches:
        numbers = batch.column(TABLE)
        for number in pc.unique(numbers).to_pylist():
            mine = batch.filter(pc.equal(numbers, number)).column(FIRST + number)
            yield number, pa.RecordBatch.from_struct_array(mine)


@attrs.frozen
class TableTask:
    """Makes the part of the subtask whose number is the partition's."""

    plan: ImportPlan

    @ready_for_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of `ANSWER`."""
        context = TaskContext.get()
        assert context is not None
        with loading(begin_task()):  # the part's cells stay until it is written
            answer = self.plan.answer(context.partitionId(), batches)
        yield answer.batch()
