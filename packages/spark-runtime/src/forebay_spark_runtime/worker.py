"""What runs in a Python worker: one subtask of one micro-batch, between two Arrow streams.

The version is committed before the last output batch is handed on: Spark may take a micro-batch for
done as soon as it has what it wants of the output, without running this to its end.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from forebay_spark_runtime.rows_in import SLICE_ROWS, RowReader
from forebay_spark_runtime.rows_out import RowWriter
from forebay_state_api.codecs import codec_for
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage import open_storage
from forebay_state_api.subtask import Subtask, SubtaskIdentity
from forebay_state_api.versions import OperatorVersions, RunIdentity, operator_folder

if TYPE_CHECKING:
    from forebay_spark_runtime.keyed import KeyedOptions

_log = logging.getLogger(__name__)

OUTPUT_ROWS: Final = 8_192
"""Rows of an output batch, about."""


@attrs.frozen(kw_only=True)
class SubtaskJob:
    """The function given to ``mapInArrow``; travels to the workers."""

    options: KeyedOptions
    function: bytes
    """The user's function, pickled: each task gets a fresh copy."""
    function_name: str
    key_type: bytes
    widths: tuple[int, ...]
    """Number of the user's columns of each input."""
    key_positions: tuple[int, ...]
    """Where the key columns stand among the user's, of a single input."""
    schema: Any
    """Of the output, as ``pa.Schema``."""
    time_zone: str
    streaming: bool
    connect_foreach_batch: bool

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        task = TaskContext.get()
        source = _non_empty(batches)
        first = next(source, None)
        place = _Place.of(self, task)
        rows = _Reader(self, place.subtask)
        writer = RowWriter(self.schema, function=self.function_name, time_zone=self.time_zone)
        now_us = 0 if first is None else rows.now_us(first)
        with self._subtask(place, now_us) as subtask:
            held: list[Any] = []
            for batch in rows.ordered(first, source):
                rows.feed(batch, subtask)
                if len(subtask.engine.rows_out) >= OUTPUT_ROWS:
                    yield from held
                    held = writer.batches(subtask.take_rows(), OUTPUT_ROWS)
            subtask.drain()
            last = writer.batches(subtask.take_rows(), OUTPUT_ROWS)
            report = subtask.commit()
            _log.info("operator %s, subtask %d: %s", self.options.uid, place.subtask, report)
        yield from held
        yield from last

    def _subtask(self, place: _Place, now_us: int) -> Subtask:
        options = self.options
        settings = options.settings
        backend = plugins().backend(settings["state.backend"])
        return Subtask(
            pickle.loads(self.function),  # noqa: S301 - it comes from the job's own driver
            backend,
            place.identity(options),
            versions=self._versions(place, backend.name),
            key_codec=codec_for(
                pickle.loads(self.key_type),  # noqa: S301 - it comes from the job's own driver
                what=f"key of operator {options.uid!r}",
            ),
            now_us=now_us,
            settings=options.engine_settings(),
            backend_options=settings.backend_options(),
            cache_bytes=settings["state.cache-bytes"],
            new_state=options.new_state,
        )

    def _versions(self, place: _Place, backend: str) -> OperatorVersions | None:
        options = self.options
        if place.query is None:
            return None
        directory = options.state_dir or options.settings.required("state.dir", argument="state_dir")
        root = open_storage(directory, options.settings.storage_options())
        return OperatorVersions(
            root.child(operator_folder(place.query, options.uid)),
            uid=options.uid,
            max_parallelism=options.max_parallelism,
            backend_name=backend,
        )


@attrs.frozen(kw_only=True)
class _Place:
    """Where this task stands: query, batch, run, subtask and attempt."""

    query: str | None
    """``None``: state that is dropped at the end."""
    batch_id: int
    run: RunIdentity
    subtask: int
    attempt_id: int
    attempt_number: int

    @classmethod
    def of(cls, job: SubtaskJob, task: Any) -> _Place:
        """From the task's context and what `keyed` was told."""
        options = job.options
        query = options.query or task.getLocalProperty("sql.streaming.queryId")
        batch = options.batch_id
        if batch is None:
            seen = task.getLocalProperty("streaming.sql.batchId")
            batch = None if seen is None else int(seen)
        if job.streaming or job.connect_foreach_batch:
            _require(options.uid, query=query, batch_id=batch)
        subtask = task.partitionId()
        if subtask >= options.parallelism:
            raise _moved(options.uid, f"partition {subtask} of {options.parallelism} ran")
        return cls(
            query=query,
            batch_id=batch or 0,
            run=RunIdentity(
                keyed_uuid=options.keyed_uuid,
                app_id=task.getLocalProperty("spark.app.id"),
                run_id=task.getLocalProperty("spark.jobGroup.id"),
            ),
            subtask=subtask,
            attempt_id=task.taskAttemptId(),
            attempt_number=task.attemptNumber(),
        )

    def identity(self, options: KeyedOptions) -> SubtaskIdentity:
        return SubtaskIdentity(
            uid=options.uid,
            run=self.run,
            batch_id=self.batch_id,
            subtask=self.subtask,
            parallelism=options.parallelism,
            max_parallelism=options.max_parallelism,
            attempt_id=self.attempt_id,
            attempt_number=self.attempt_number,
        )


def _require(uid: str, **given: object) -> None:
    missing = [f"{name}=" for name, value in given.items() if value is None]
    if missing:
        message = (
            f"operator {uid!r}: Spark gives no query and batch id here (foreachBatch under Spark "
            f"Connect); pass {' and '.join(missing)} to keyed()"
        )
        raise ConfigurationError(message)


def _moved(uid: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"operator {uid!r}: {what} instead of the subtask that its rows belong to. A union or "
        "coalesce on the operator's output moves its partitions: write the output first, or put a "
        "repartition() between the operator and the union or coalesce"
    )


def _non_empty(batches: Iterator[Any]) -> Iterator[Any]:
    return (batch for batch in batches if batch.num_rows)


class _Reader:
    """Takes Arrow batches apart and feeds them to a subtask."""

    def __init__(self, job: SubtaskJob, subtask: int) -> None:
        self._job = job
        self._subtask = subtask
        self._readers: list[RowReader] = []
        self._keys: RowReader | None = None
        self._seen = 0

    def now_us(self, batch: Any) -> int:
        """The micro-batch's time."""
        return int(batch.column("__forebay_now_us")[0].as_py())

    def ordered(self, first: Any, rest: Iterator[Any]) -> Iterator[Any]:
        """All batches, sorted as a whole if the job asks for it."""
        batches = iter(()) if first is None else _chain(first, rest)
        order = self._job.options.order_by
        if not order or first is None:
            return batches
        single = len(self._job.widths) == 1
        names = order if single else [f"__forebay_order_{n}" for n in range(len(order))]
        table = pa.Table.from_batches(list(batches))
        return iter(table.sort_by([(name, "ascending") for name in names]).to_batches())

    def feed(self, batch: Any, subtask: Subtask) -> None:
        """Run the rows of one Arrow batch."""
        self._check_subtask(batch)
        keys = self._key_arrays(batch)
        self._check_keys(batch, keys)
        feed = self._feed_one if len(self._job.widths) == 1 else self._feed_two
        for start in range(0, batch.num_rows, SLICE_ROWS):
            feed(batch.slice(start, SLICE_ROWS), [key.slice(start, SLICE_ROWS) for key in keys], subtask)
        self._seen += batch.num_rows

    def _feed_one(self, batch: Any, keys: list[Any], subtask: Subtask) -> None:
        width = self._job.widths[0]
        if not self._readers:
            self._readers = [RowReader([batch.schema.field(i) for i in range(width)])]
        reader = self._readers[0]
        values = reader.values(batch.columns[:width])
        positions = self._job.key_positions
        if len(positions) == 1:
            key_values = values[positions[0]]
        else:
            key_values = list(zip(*[values[position] for position in positions], strict=True))
        subtask.process(reader.rows_of(values), key_values, _groups(batch))

    def _feed_two(self, batch: Any, keys: list[Any], subtask: Subtask) -> None:
        """Rows of two inputs, run by run of one side, in the order in which they came."""
        sides = [batch.column(0), batch.column(1)]
        if not self._readers:
            self._readers = [RowReader(_struct_fields(side.type)) for side in sides]
            self._keys = RowReader([pa.field(f"k{i}", key.type) for i, key in enumerate(keys)])
        key_values = self._key_values(keys)
        groups = _groups(batch)
        is_second = sides[0].is_null().to_pylist()
        start = 0
        for end in [*_changes(is_second), len(is_second)]:
            side = int(is_second[start])
            part = sides[side].slice(start, end - start)
            rows = self._readers[side].rows(part.flatten())
            subtask.process(rows, key_values[start:end], groups[start:end], side)
            start = end

    def _key_values(self, keys: list[Any]) -> list[Any]:
        assert self._keys is not None  # noqa: S101 - made with the readers
        values = self._keys.values(keys)
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def _key_arrays(self, batch: Any) -> list[Any]:
        if len(self._job.widths) == 1:
            return [batch.column(position) for position in self._job.key_positions]
        names = [name for name in batch.schema.names if name.startswith("__forebay_key_")]
        return [batch.column(name) for name in names]

    def _check_subtask(self, batch: Any) -> None:
        seen = pc.min_max(batch.column("__forebay_subtask"))
        low, high = seen["min"].as_py(), seen["max"].as_py()
        if not low == high == self._subtask:
            wrong = low if low != self._subtask else high
            raise _moved(
                self._job.options.uid, f"rows of subtask {wrong} came to partition {self._subtask}"
            )

    def _check_keys(self, batch: Any, keys: list[Any]) -> None:
        for number, key in enumerate(keys):
            if key.null_count:
                self._refuse_key(batch, number, key.is_null(), "null")
            if pa.types.is_floating(key.type):
                nan = pc.is_nan(key)
                if pc.any(nan).as_py():
                    self._refuse_key(batch, number, nan, "NaN")

    def _refuse_key(self, batch: Any, number: int, where: Any, what: str) -> None:
        position = pc.index(where, value=True).as_py()
        message = (
            f"operator {self._job.options.uid!r}, subtask {self._subtask}: key column number "
            f"{number + 1} is {what} in record {self._seen + position} of the micro-batch's "
            f"partition: {_shown(batch, position)}. Filter such rows, or give them a key"
        )
        raise ConfigurationError(message)


def _shown(batch: Any, position: int) -> str:
    row = batch.slice(position, 1).to_pylist()[0]
    return repr({k: v for k, v in row.items() if not k.startswith("__forebay_")})[:300]


def _groups(batch: Any) -> list[int]:
    groups: list[int] = batch.column("__forebay_group").to_numpy().tolist()
    return groups


def _struct_fields(kind: Any) -> list[Any]:
    return [kind.field(position) for position in range(kind.num_fields)]


def _changes(flags: list[bool]) -> list[int]:
    """Positions at which ``flags`` differ from the one before."""
    return [i for i in range(1, len(flags)) if flags[i] != flags[i - 1]]


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
