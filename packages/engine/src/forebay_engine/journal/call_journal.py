"""The answers of one task attempt: those that earlier attempts kept, and its own.

A keyed operator's task uses `CallJournal`. An ordered wait has no versions, whose files the janitor
would delete, and its rows may be in another partition when the micro-batch is repeated: its task
uses `PartitionJournal`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.journal.answer_objects import AnswerEncoder, as_replayed, decoded
from forebay_engine.journal.naming import CallNames
from forebay_engine.journal.reader import AnswerReader, listed_answers
from forebay_engine.journal.writer import FLUSH_S, AnswerWriter
from forebay_engine.versions.format.layout import AnswersName, answers_folder
from forebay_state_api.contract.file_names import DATA
from forebay_state_api.errors import StorageError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.threads import PerProcess, ReadThreads

if TYPE_CHECKING:
    from forebay_engine.versions.format.layout import Coordinates
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.metrics.calls import CallMetrics

_log = logging.getLogger(__name__)

NOT_KEPT: Final = object()
"""The result of `CallJournal.find` where no answer is kept."""
MOST_ANSWER_BYTES: Final = 1 << 20
"""The largest answer that is kept."""
_THREADS: Final = PerProcess(lambda: ReadThreads(4, "forebay-kept-answers"))
_NUMBERS: Final = itertools.count()
"""Numbers of objects. A coalesce runs several partitions of a wait in one task attempt."""
_KEEPING: Final[set[str]] = set()
"""Operators of this process whose tasks have kept answers, so that the next ones list early."""


class CallJournal:
    """Keeps the answers of one task attempt, and finds those of earlier ones.

    Nothing is requested before the first call. All methods are called on the task thread.
    """

    def __init__(self, storage: ObjectStorage, *, version: int, batch_ms: int, use: bool) -> None:
        """``storage`` is the operator's folder; without ``use`` nothing that is kept is found.

        ``version`` and ``batch_ms`` identify the micro-batch.
        """
        self.names: Final = CallNames()
        self._encoder: Final = AnswerEncoder()
        self._storage: Final = storage
        self._version: Final = version
        self._batch_ms: Final = batch_ms
        self._use: Final = use
        self._made: AnswersName | None = None
        self._writer: AnswerWriter | None = None
        self._listing: Future[Sequence[AnswersName]] | None = None
        self._loading: asyncio.Future[None] | None = None
        self._reader: AnswerReader | None = None
        self._answered = 0
        self._has_said_large = False

    @property
    def is_expected(self) -> bool:
        """Whether an earlier task of the operator has made kept calls in this process."""
        return self._storage.url in _KEEPING

    def begin_list(self) -> None:
        """Begin the list before the first call; without it that call begins it."""
        self._listing = _THREADS().submit(self._list)

    def begin(self, made: Coordinates) -> None:
        """Name this attempt; called before the first call."""
        self._made = AnswersName.of_attempt(made, self._batch_ms)

    @property
    def has_found_all(self) -> bool:
        """Whether no answer is left that `find` could return."""
        reader = self._reader
        return reader is not None and not len(reader) and reader.is_complete

    async def find(self, name: bytes) -> Any:
        """Return the answer that is kept under a name; `NOT_KEPT` if there is none.

        Raises `StorageError` if what is kept cannot be read.
        """
        reader = self._reader
        if reader is None:
            reader = await self._loaded()
        data = await self._taken(reader, name)
        while data is None and not reader.is_complete:
            await self._load_more(reader)
            data = await self._taken(reader, name)
        if data is None:
            return NOT_KEPT
        self._answered += 1
        return decoded(data)

    def keep(self, call: str, name: bytes, answer: Any) -> Any:
        """Keep an answer; return it as a later attempt will get it.

        Raises `TypeError`, which begins with ``call``, for one that is not a plain value.
        """
        data = self._encoder.encoded(call, answer)
        if len(data) > MOST_ANSWER_BYTES:
            self._say_large(call, len(data))
        else:
            self._answer_writer().add(name, data)
        return as_replayed(answer, data)

    def end(self) -> None:
        """Begin to put what is left."""
        if self._writer is not None:
            self._writer.end()

    def finish(self) -> None:
        """Wait until all answers are stored, or storage has failed; before the manifest."""
        if self._writer is not None:
            self._writer.end()
            self._writer.join()

    def close(self) -> None:
        """Put what is left, for at most `FLUSH_S`; after `finish` there is nothing left."""
        if self._writer is not None:
            self._writer.end()
            self._writer.join(FLUSH_S)

    def count(self, counts: CallMetrics) -> None:
        """Put the figures into ``counts``."""
        counts.answered = self._answered
        if self._writer is not None:
            counts.kept_bytes = self._writer.kept_bytes
            counts.dropped = self._writer.dropped

    # -- parts --------------------------------------------------------------------------------

    async def _taken(self, reader: AnswerReader, name: bytes) -> bytes | None:
        if reader.holds(name):
            return reader.take(name)
        return await asyncio.get_running_loop().run_in_executor(_THREADS(), reader.take, name)

    def _list(self) -> Sequence[AnswersName]:
        """Return the names of what is kept (one list)."""
        return listed_answers(self._storage, answers_folder(self._version))

    def _chosen(
        self, names: Sequence[AnswersName]
    ) -> tuple[Sequence[AnswersName], Sequence[AnswersName]]:
        """Return those of the micro-batch's objects that are read first, and those read later."""
        own = self._own
        return [one for one in names if one.range.intersection(own.range) is not None], ()

    @property
    def _own(self) -> AnswersName:
        assert self._made is not None
        return self._made

    async def _loaded(self) -> AnswerReader:
        loop = asyncio.get_running_loop()
        if self._loading is None:
            _KEEPING.add(self._storage.url)
            self._loading = loop.run_in_executor(_THREADS(), self._open)
        # A record that is cancelled must not cancel the list for the others.
        await asyncio.shield(self._loading)
        assert self._reader is not None
        return self._reader

    async def _load_more(self, reader: AnswerReader) -> None:
        """Read the next objects; several calls that miss read them once."""
        if self._loading is None or self._loading.done():
            loop = asyncio.get_running_loop()
            self._loading = loop.run_in_executor(_THREADS(), reader.load)
        await asyncio.shield(self._loading)

    def _open(self) -> None:
        names = self._list() if self._listing is None else self._listing.result()
        batch = (self._version, self._batch_ms)
        found = [one for one in names if self._use and (one.version, one.batch_ms) == batch]
        first, later = self._chosen(found)
        reader = AnswerReader(self._storage, first, later)
        reader.load()
        if found:
            _log.info("%d answers are kept in %d objects", len(reader), len(first))
        self._reader = reader

    def _answer_writer(self) -> AnswerWriter:
        if self._writer is None:
            self._writer = AnswerWriter(self._put)
        return self._writer

    def _put(self, data: bytes) -> None:
        self._storage.put(attrs.evolve(self._own, number=next(_NUMBERS)).text(), data)

    def _say_large(self, call: str, size: int) -> None:
        if not self._has_said_large:
            self._has_said_large = True
            _log.warning(
                "%s: an answer has %d bytes and is not kept: at most %d are. If the micro-batch is "
                "repeated, its call is made again",
                call,
                size,
                MOST_ANSWER_BYTES,
            )


class PartitionJournal(CallJournal):
    """Keeps the answers of one task of an ordered wait, and deletes those of earlier batches.

    Its objects are named by partition. The run's rank, for which a wait has no epochs, follows from
    the list: a run is newer than all whose objects it finds.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        *,
        version: int,
        batch_ms: int,
        use: bool,
        partition: int,
        run_key: str,
        attempt_id: int,
        is_first: bool,
    ) -> None:
        """``is_first`` means that Spark has not tried this task before."""
        super().__init__(storage, version=version, batch_ms=batch_ms, use=use)
        self._is_first = is_first
        self._made = AnswersName(
            version=version,
            batch_ms=batch_ms,
            range=KeyGroupRange(partition, partition),
            epoch=1,
            run_key=run_key,
            attempt_id=attempt_id,
        )

    def _list(self) -> Sequence[AnswersName]:
        names = listed_answers(self._storage, DATA)
        self._made = attrs.evolve(self._own, epoch=self._rank(names))
        self._delete([name.text() for name in names if self._is_left(name)])
        return names

    def _rank(self, names: Sequence[AnswersName]) -> int:
        """Return the rank that the run's other tasks have found, or one above that of all others.

        A run that is resumed after a newer one has begun keeps its rank.
        """
        made = [name for name in names if name.version == self._version]
        own = [name.epoch for name in made if name.run_key == self._own.run_key]
        return min(own) if own else 1 + max((name.epoch for name in made), default=0)

    def _delete(self, names: Sequence[str]) -> None:
        """Delete what earlier batches have left: Spark has logged them, and repeats none."""
        try:
            self._storage.delete(names)
        except StorageError as error:
            _log.warning("answers of earlier micro-batches were not deleted: %s", error)

    def _is_left(self, name: AnswersName) -> bool:
        """Return whether this task deletes an object: its partition's, or of partitions gone."""
        own, version = self._own, self._version
        if name.range == own.range:
            return name.version < version
        return own.range.start == 0 and name.version < version - 1

    def _chosen(
        self, names: Sequence[AnswersName]
    ) -> tuple[Sequence[AnswersName], Sequence[AnswersName]]:
        own = self._own
        first = [name for name in names if name.range == own.range]
        # The first attempt of a run finds what its other tasks have kept: rows of their own.
        is_first = self._is_first and all(name.run_key != own.run_key for name in first)
        later = [
            name
            for name in names
            if name.range != own.range and not (is_first and name.run_key == own.run_key)
        ]
        return first, later
