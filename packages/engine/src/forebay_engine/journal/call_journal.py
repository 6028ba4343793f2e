"""The answers of one task attempt: those that earlier attempts kept, and its own."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.journal.answer_objects import as_replayed, decoded, encoded
from forebay_engine.journal.naming import CallNames
from forebay_engine.journal.reader import AnswerReader, listed_answers
from forebay_engine.journal.writer import FLUSH_S, AnswerWriter
from forebay_engine.versions.format.layout import AnswersName
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
        self._storage: Final = storage
        self._version: Final = version
        self._batch_ms: Final = batch_ms
        self._use: Final = use
        self._made: AnswersName | None = None
        self._writer: AnswerWriter | None = None
        self._listing: Future[Any] | None = None
        self._loading: asyncio.Future[None] | None = None
        self._reader: AnswerReader | None = None
        self._answered = 0
        self._is_used = False
        self._has_said_large = False

    def list_early(self) -> None:
        """Begin the list if the operator's last task in this process has kept answers."""
        if self._use and self._storage.url in _KEEPING:
            self._listing = _THREADS().submit(self._list)

    def begin(self, made: Coordinates) -> None:
        """Name this attempt; called before the first call."""
        self._made = AnswersName(
            version=self._version,
            batch_ms=self._batch_ms,
            range=made.range,
            epoch=made.epoch,
            run_key=made.run_key,
            attempt_id=made.attempt_id,
        )

    async def find(self, name: bytes) -> Any:
        """Return the answer that is kept under a name; `NOT_KEPT` if there is none.

        Raises `StorageError` if what is kept cannot be read.
        """
        reader = self._reader
        if reader is None:
            reader = await self._loaded()
        if reader.holds(name):
            data = reader.take(name)
        else:
            data = await asyncio.get_running_loop().run_in_executor(_THREADS(), reader.take, name)
        if data is None:
            return NOT_KEPT
        self._answered += 1
        return decoded(data)

    def keep(self, keep: str, name: bytes, answer: Any) -> Any:
        """Keep an answer; return it as a later attempt will get it.

        Raises `TypeError` for one that is not a plain value.
        """
        data = encoded(keep, answer)
        if len(data) > MOST_ANSWER_BYTES:
            self._say_large(keep, len(data))
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

    def _list(self) -> Any:
        return listed_answers(self._storage, self._version, self._batch_ms)

    async def _loaded(self) -> AnswerReader:
        loop = asyncio.get_running_loop()
        if self._loading is None:
            _KEEPING.add(self._storage.url)
            self._loading = loop.run_in_executor(_THREADS(), self._load)
        # A record that is cancelled must not cancel the list for the others.
        await asyncio.shield(self._loading)
        assert self._reader is not None
        return self._reader

    def _load(self) -> None:
        made = self._made
        assert made is not None
        names: Any = ()
        if self._use:
            names = self._list() if self._listing is None else self._listing.result()
        own = [name for name in names if name.range.intersection(made.range) is not None]
        reader = AnswerReader(self._storage, own)
        reader.load()
        if own:
            _log.info("%d answers are kept, in %d objects", len(reader), len(own))
        self._reader = reader

    def _answer_writer(self) -> AnswerWriter:
        if self._writer is None:
            self._writer = AnswerWriter(self._put)
        return self._writer

    def _put(self, number: int, data: bytes) -> None:
        assert self._made is not None
        self._storage.put(attrs.evolve(self._made, number=number).text(), data)

    def _say_large(self, keep: str, size: int) -> None:
        if not self._has_said_large:
            self._has_said_large = True
            _log.warning(
                "an answer of kept_call(%r, ...) has %d bytes and is not kept: at most %d are. Its "
                "call is made again if the micro-batch is repeated",
                keep,
                size,
                MOST_ANSWER_BYTES,
            )
