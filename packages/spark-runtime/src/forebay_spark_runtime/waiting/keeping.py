"""Keeps the answers of a wait while its micro-batch may be repeated: ``keep_answers=``.

The driver checks the arguments; each task opens a journal. An answer is found by the values of the
columns that the function gets, wherever and in whichever order its row comes.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_engine.calls.caller import Caller
from forebay_engine.configuring import resolve_with_plugins
from forebay_engine.execution.arguments import checked_uid
from forebay_engine.journal.call_journal import NOT_KEPT, CallJournal, PartitionJournal
from forebay_engine.versions import OperatorStorage, RunIdentity
from forebay_engine.versions.choosing.fencing import duplicate_uid_error
from forebay_engine.versions.format.layout import waits_folder
from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.operator_names import SAME_UID, refuse_uid_twice, rows_name
from forebay_spark_runtime.driver.options import shared_directory
from forebay_spark_runtime.keyed_operator.plan import BATCH_MS
from forebay_spark_runtime.waiting.options import CARRY
from forebay_state_api.errors import ConfigurationError, FunctionError
from forebay_state_api.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay_engine.calls.worker_slots import WorkerSlot
    from forebay_spark_runtime.waiting.options import WaitOptions
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.metrics.calls import CallMetrics

UNKNOWN_MS: Final = 0
"""The time of a batch that has none in a checkpoint."""


@attrs.frozen
class WaitBatch:
    """The part of a micro-batch that one task has."""

    query: str
    batch_id: int
    batch_ms: int
    """The time that its rows carry; 0 if they carry none."""
    partition: int
    """The partition in which the rows were before a union or coalesce moved them."""


@attrs.frozen(kw_only=True)
class Keeping:
    """The name and the place of a wait's answers; sent to the workers."""

    keep: str
    uid: str
    state_dir: str
    storage_options: Mapping[str, Any] = attrs.field(repr=False)
    use: bool
    """Whether answers that are kept are used."""
    batch_ms: int | None
    """The batch's time in the query's checkpoint; ``None`` on a stream, whose rows carry it."""
    made: str = attrs.field(factory=lambda: str(uuid.uuid4()))
    """A random id of the wait: on a stream of its run, in ``foreachBatch`` of the micro-batch."""

    def answers(self, name: str, batch: WaitBatch) -> RowAnswers:
        """Return the answers of the running task; ``name`` is the operator's, for errors."""
        task: Any = TaskContext.get()
        read = task.getLocalProperty
        if read(query_listener.MARK) == "true":
            raise query_listener.async_progress_error(self.uid)
        if read(SAME_UID) == self.uid:
            raise duplicate_uid_error(self.uid)
        run = RunIdentity(
            keyed_uuid=self.made, app_id=read("spark.app.id"), run_id=read("spark.jobGroup.id")
        )
        options = tuple(sorted(self.storage_options.items()))
        root = _opened(os.getpid(), self.state_dir, options)
        journal = PartitionJournal(
            OperatorStorage(root, waits_folder(batch.query, self.uid)),
            version=batch.batch_id + 1,
            batch_ms=batch.batch_ms if self.batch_ms is None else self.batch_ms,
            use=self.use,
            partition=batch.partition,
            run_key=run.key,
            attempt_id=task.taskAttemptId(),
            is_first=task.attemptNumber() == 0,
        )
        journal.begin_list()
        return RowAnswers(self.keep, journal, name)


@functools.lru_cache(maxsize=16)
def _opened(process: int, directory: str, options: tuple[tuple[str, Any], ...]) -> ObjectStorage:
    """Open a state directory once per process, so that a network store keeps its connections."""
    del process
    return open_storage(directory, dict(options))


def check_keeping(df: DataFrame, options: WaitOptions, name: str) -> Keeping | None:
    """Check ``keep_answers`` and the options for it; ``None`` if no answers are kept.

    Raises `ConfigurationError`.
    """
    keep: Any = options.keep_answers
    if keep is None:
        return None
    if not isinstance(keep, str) or not keep:
        raise ConfigurationError(
            f"{name}: keep_answers= is a name of your own for the answers, such as 'score-v2', not "
            f"{keep!r}"
        )
    if options.pending == CARRY:
        raise ConfigurationError(
            f"{name}: keep_answers= does not go with pending='carry': rows that are "
            "carried over are asked for in another micro-batch, which finds no answers of this "
            "one. Leave one of the two out"
        )
    if not isinstance(options.uid, str) or not options.uid:
        raise ConfigurationError(
            f"{name}: keep_answers= needs uid=, a name under which the answers are found when the "
            f"micro-batch is repeated, not {options.uid!r}"
        )
    uid = checked_uid(options.uid)
    refuse_uid_twice([df], uid)
    session = df.sparkSession
    _check_named(df, options, name)
    overrides = {"state.dir": options.state_dir}
    settings = resolve_with_plugins(sessions.configuration(session), overrides=overrides)
    directory = shared_directory(settings, uid)
    if not sessions.is_connect(session):
        open_storage(directory, settings.storage_options())  # finds an invalid scheme or path
    return Keeping(
        keep=keep,
        uid=uid,
        state_dir=directory,
        storage_options=settings.storage_options(),
        use=settings["use-kept-answers"],
        batch_ms=None if df.isStreaming else _batch_ms(df, options, uid),
    )


def _check_named(df: DataFrame, options: WaitOptions, name: str) -> None:
    """Refuse a bounded DataFrame that no later evaluation could recognise."""
    if df.isStreaming or options.query is not None:
        return
    if sessions.current_batch(df.sparkSession).query is None:
        raise ConfigurationError(
            f"{name}: keep_answers= needs query= and batch_id= on a bounded DataFrame, and in "
            "foreachBatch under Spark Connect: without them nothing would find the answers. Pass "
            "both, or leave keep_answers= out"
        )


def _batch_ms(df: DataFrame, options: WaitOptions, uid: str) -> int:
    """Return the time of the micro-batch of ``foreachBatch``, if it is known."""
    if options.query is not None:
        return UNKNOWN_MS
    batch = sessions.current_batch(df.sparkSession)
    known = query_listener.ask_this_batch(df.sparkSession, batch, uid)
    return UNKNOWN_MS if known is None else known[1]


def with_time(df: DataFrame, keeping: Keeping, column: str) -> DataFrame:
    """Return a stream with the micro-batch's time in ``column``, and with a name in its plan.

    By the name two waits of one uid are found when the query starts: a row of one would find the
    answer to an equal row of the other.
    """
    timed = df.withColumn(column, F.expr(BATCH_MS))
    if sessions.is_connect(df.sparkSession):
        return timed
    return timed.observe(rows_name(keeping.uid, keeping.made), F.count(F.lit(1)).alias("rows_in"))


class RowAnswers:
    """The kept answers of one task's rows."""

    def __init__(self, keep: str, journal: CallJournal, name: str) -> None:
        """``name`` is the operator's, for errors."""
        self._keep = keep
        self._journal = journal
        self._name = name
        self._call = f"{name}: keep_answers={keep!r}"

    async def find(self, row: Any) -> tuple[bytes, Any]:
        """Return the name of a row's call, and its answer or `NOT_KEPT`.

        Equal rows are numbered in the order in which this is called. Raises `ConfigurationError`
        for a row with values that have no stable bytes.
        """
        try:
            name = self._journal.names.of(self._keep, (), (row,), {})
        except TypeError as error:
            raise ConfigurationError(
                f"{self._name}: {error}; leave columns out of what the function gets with columns="
            ) from error
        if self._journal.has_found_all:
            return name, NOT_KEPT
        return name, await self._journal.find(name)

    def keep(self, name: bytes, answer: Any) -> Any:
        """Keep an answer; return it as a repetition will get it."""
        try:
            return self._journal.keep(self._call, name, answer)
        except TypeError as error:
            raise FunctionError(str(error)) from error

    def finish(self) -> None:
        """Wait until all answers are stored, or storage has failed."""
        self._journal.finish()

    def close(self, counts: CallMetrics) -> None:
        """Store what is left, for a few seconds, and put the figures into ``counts``."""
        self._journal.close()
        self._journal.count(counts)


def held_back(batches: Iterable[Any], finish: Callable[[], None]) -> Iterator[Any]:
    """Yield all batches; call ``finish`` before the last one: Spark may read no further than it."""
    held = None
    for batch in batches:
        if held is not None:
            yield held
        held = batch
    finish()
    if held is not None:
        yield held


class KeepingCaller(Caller):
    """Makes the calls whose answers are not kept, and keeps their answers."""

    answers: RowAnswers

    async def one(self, slot: WorkerSlot, index: int, row: Any) -> Any:
        """Return the answer for a row; what ``on_error`` makes of an error is not kept."""
        name, found = await self.answers.find(row)
        if found is not NOT_KEPT:
            return found
        answer = await super().one(slot, index, row)
        if isinstance(answer, _GivenUp):
            return answer.result
        return self.answers.keep(name, answer)

    def given_up(
        self, index: int, row: Any, error: BaseException, tries: int, *, in_time: bool
    ) -> Any:
        """Mark the result of ``on_error``."""
        return _GivenUp(super().given_up(index, row, error, tries, in_time=in_time))


@attrs.frozen
class _GivenUp:
    result: Any
