"""The measured jobs: running count and sum per user, and dedup with TTL, ours and the peers'.

Except `jvmagg`, the jobs that count emit one row for each input row: ``user, amount, cnt, total``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks.data import TTL

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

OUTPUT: Final = "user string, amount long, cnt long, total long"
FIRST_ROWS: Final = "user string, amount long"
COLUMNS: Final = ["user", "amount", "cnt", "total"]
PARTITIONS: Final = 2
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_dicts: dict[int, dict[str, list[int]]] = {}
"""The `dict` job's state: one dict per partition, which lives as long as the worker process."""


class CountTransformWithState(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped
    """Spark's transformWithState, Row API, as in its guide: one get and one update per key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.acc = handle.getValueState("acc", "cnt long, total long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """Count and add all rows of a key in the micro-batch."""
        stored = self.acc.get()
        count, total = stored if stored is not None else (0, 0)
        for row in rows:
            count += 1
            total += row.amount
            yield Row(user=key[0], amount=row.amount, cnt=count, total=total)
        self.acc.update((count, total))

    def close(self) -> None:
        """Nothing is held."""


class DedupTransformWithState(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped
    """Spark's transformWithState, Row API: emits the first row of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        ttl_ms = TTL // timedelta(milliseconds=1)
        self.seen = handle.getValueState("seen", "seen long", ttlDurationMs=ttl_ms)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """Read once for all rows of a key in the micro-batch."""
        if not self.seen.exists():
            self.seen.update((1,))
            yield Row(user=key[0], amount=next(rows).amount)

    def close(self) -> None:
        """Nothing is held."""


def count_in_dict(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count in a plain dict that is not durable: the upper limit for this pipeline in Python."""
    context = TaskContext.get()
    assert context is not None
    state = _dicts.setdefault(context.partitionId(), {})
    for batch in batches:
        counts: list[int] = []
        totals: list[int] = []
        for user, amount in zip(
            batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True
        ):
            entry = state.get(user)
            if entry is None:
                entry = state[user] = [0, 0]
            entry[0] += 1
            entry[1] += amount
            counts.append(entry[0])
            totals.append(entry[1])
        columns = [
            batch.column(0),
            batch.column(1),
            pa.array(counts, pa.int64()),
            pa.array(totals, pa.int64()),
        ]
        yield pa.RecordBatch.from_arrays(columns, COLUMNS)


def rows_without_state(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert Arrow to Python values and back, and nothing else: the fixed cost of `dict`."""
    for batch in batches:
        users, amounts = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        arrays = [pa.array(users, pa.string())] + [pa.array(amounts, pa.int64())] * 3
        yield pa.RecordBatch.from_arrays(arrays, COLUMNS)


def arrow_without_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass Arrow on unchanged: the cost of Spark and the socket alone."""
    for batch in batches:
        amounts = batch.column(1)
        yield pa.RecordBatch.from_arrays([batch.column(0), amounts, amounts, amounts], COLUMNS)


class Build(Protocol):
    """Builds a job of the events, with a state directory; returns the output."""

    def __call__(
        self, events: DataFrame, state_dir: Path, partitions: int = PARTITIONS
    ) -> DataFrame:
        """``partitions`` are those of the state, in a session whose shuffles have as many."""


@attrs.frozen(kw_only=True)
class Job:
    """One implementation of the work."""

    name: str
    about: str
    build: Build
    output_mode: str = "append"
    conf: Mapping[str, str] = attrs.field(factory=dict)
    """Session settings that only this job has."""


def _nothing_done(events: DataFrame, state_dir: Path, partitions: int = PARTITIONS) -> DataFrame:
    from benchmarks.nothing_done import NothingDone
    from forebay_spark_runtime import keyed

    stream = keyed(events, "user", uid="bench", parallelism=partitions, state_dir=str(state_dir))
    return stream.process(NothingDone(), OUTPUT)


def _ours(form: str, output: str = OUTPUT, *, method: str = "process", **arguments: Any) -> Build:
    def build(events: DataFrame, state_dir: Path, partitions: int = PARTITIONS) -> DataFrame:
        # Imported here, so that the peers' processes do not load our packages.
        from benchmarks import functions
        from forebay_spark_runtime import keyed

        stream = keyed(
            events,
            "user",
            uid="bench",
            parallelism=partitions,
            max_parallelism=max(partitions, 128),
            state_dir=str(state_dir),
            **arguments,
        )
        made: DataFrame = getattr(stream, method)(getattr(functions, form)(), output)
        return made

    return build


def _mapped(
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Build:
    def build(events: DataFrame, state_dir: Path, partitions: int = PARTITIONS) -> DataFrame:
        del state_dir
        return events.repartition(partitions, "user").mapInArrow(function, OUTPUT)

    return build


def _transform_with_state(processor: type[StatefulProcessor], output: str, time_mode: str) -> Build:
    def build(events: DataFrame, state_dir: Path, partitions: int = PARTITIONS) -> DataFrame:
        del state_dir, partitions
        return events.groupBy("user").transformWithState(processor(), output, "Append", time_mode)

    return build


def _jvm_aggregation(events: DataFrame, state_dir: Path, partitions: int = PARTITIONS) -> DataFrame:
    del state_dir, partitions
    return events.groupBy("user").agg(F.count("*").alias("cnt"), F.sum("amount").alias("total"))


_WITH_LSM: Final = {"spark.forebay.state.backend": "lsm"}
_WITH_ROCKSDB: Final = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
_TO_ITS_END: Final = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""With TTL, transformWithState keeps running micro-batches without data."""

JOBS: Final[Mapping[str, Job]] = {
    job.name: job
    for job in (
        Job(name="ours-sync", about="keyed, plain function", build=_ours("CountSync")),
        Job(
            name="ours-columns",
            about="keyed, batch function",
            build=_ours("CountColumns", method="process_batch"),
        ),
        Job(
            name="ours-sync-on-error",
            about='keyed, plain function, on_error="column"',
            build=_ours("CountSync", on_error="column"),
        ),
        Job(
            name="ours-sync-ttl",
            about="keyed, plain function, state with TTL",
            build=_ours("CountTtl"),
        ),
        Job(name="ours-coroutine", about="keyed, coroutine", build=_ours("CountCoroutine")),
        Job(
            name="ours-lsm-sync",
            about="keyed on the lsm backend, plain function",
            build=_ours("CountSync"),
            conf=_WITH_LSM,
        ),
        Job(
            name="ours-lsm-coroutine",
            about="keyed on the lsm backend, coroutine",
            build=_ours("CountCoroutine"),
            conf=_WITH_LSM,
        ),
        Job(name="dict", about="plain dict, not durable", build=_mapped(count_in_dict)),
        Job(name="floor-rows", about="rows, no state", build=_mapped(rows_without_state)),
        Job(name="nothing-done", about="keyed, Arrow passed on", build=_nothing_done),
        Job(name="floor-arrow", about="Arrow, no rows", build=_mapped(arrow_without_rows)),
        Job(
            name="tws",
            about="transformWithState, Row API, RocksDB",
            build=_transform_with_state(CountTransformWithState, OUTPUT, "None"),
            conf=_WITH_ROCKSDB,
        ),
        Job(
            name="jvmagg",
            about="groupBy count and sum in the JVM, RocksDB, update mode",
            build=_jvm_aggregation,
            output_mode="update",
            conf=_WITH_ROCKSDB,
        ),
        Job(
            name="ours-dedup-ttl",
            about="keyed, dedup with TTL, plain function",
            build=_ours("DedupTtl", FIRST_ROWS),
        ),
        Job(
            name="ours-dedup-columns",
            about="keyed, dedup with TTL, batch function",
            build=_ours("DedupColumns", FIRST_ROWS, method="process_batch"),
        ),
        Job(
            name="tws-dedup-ttl",
            about="transformWithState, dedup with TTL, Row API, RocksDB",
            build=_transform_with_state(DedupTransformWithState, FIRST_ROWS, "ProcessingTime"),
            conf=_WITH_ROCKSDB | _TO_ITS_END,
        ),
    )
}
