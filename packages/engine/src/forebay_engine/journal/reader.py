"""Finds answers that earlier attempts of the micro-batch kept.

One list fixes what may be used: what another attempt writes later is not found. Of two answers to
one call that of the newest attempt wins, and within an attempt the first one. An object that is
damaged, or of a format that this release does not know, has no answers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.journal.answer_objects import StoredAnswers, stored_answers
from forebay_engine.journal.naming import DIGEST_BYTES
from forebay_engine.versions.format.layout import AnswersName
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)

HELD_BYTES: Final = 64 << 20
"""Bytes of values that stay in memory; an object above them is read again for each hit in turn."""
MOST_INDEXED: Final = 1_000_000
"""Answers that can be found; calls for others are made again."""


@attrs.frozen
class _StoredValue:
    """The position of an answer: its object, and its bytes among the values."""

    object: str
    start: int
    end: int


def listed_answers(storage: ObjectStorage, folder: str) -> Sequence[AnswersName]:
    """Return the names of all answers below a folder, in any order (one list)."""
    found = (AnswersName.parse(info.name) for info in storage.list(folder))
    return [name for name in found if name is not None]


def newest_first(names: Iterable[AnswersName]) -> list[AnswersName]:
    """Sort names by rank of run, then attempt, the newest first; an attempt's objects in order."""
    return sorted(names, key=lambda n: (-n.epoch, _inverted(n.run_key), -n.attempt_id, n.number))


def _inverted(run_key: str) -> int:
    return -int(run_key, 16)


class AnswerReader:
    """The answers in some objects. After `load` it may be used from any thread."""

    def __init__(
        self,
        storage: ObjectStorage,
        names: Sequence[AnswersName],
        others: Sequence[AnswersName] = (),
        *,
        held_bytes: int = HELD_BYTES,
        most_indexed: int = MOST_INDEXED,
    ) -> None:
        """``others`` are read by a second `load`; a task calls it when an answer is missing."""
        self._storage: Final = storage
        self._unread: Final = [one for one in (names, others) if one]
        self._most_indexed: Final = most_indexed
        self._held_bytes: Final = held_bytes
        self._places: Final[dict[bytes, _StoredValue]] = {}
        self._held: Final[dict[str, bytes]] = {}
        self._held_now = 0
        self._has_logged = False
        self._reading: Final = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_complete(self) -> bool:
        """Whether everything has been read."""
        return not self._unread

    def load(self) -> None:
        """Read the next objects and index their answers. Raises `StorageError`."""
        for name in newest_first(self._unread.pop(0)) if self._unread else ():
            content = self._read(name.text())
            if content is None:
                continue
            if len(self._places) + len(content) > self._most_indexed:
                _log.warning(
                    "%d answers are kept of this micro-batch, of which %d are used: other calls "
                    "are made again",
                    len(self._places) + len(content),
                    len(self._places),
                )
                return
            with self._reading:
                self._index(name.text(), content)

    def holds(self, name: bytes) -> bool:
        """Return whether `take` has to read no object for this call."""
        place = self._places.get(name)
        return place is None or place.object in self._held

    def take(self, name: bytes) -> bytes | None:
        """Return the bytes of a call's answer, and forget it; ``None`` if there is none.

        Raises `StorageError` if its object must be read again.
        """
        place = self._places.pop(name, None)
        if place is None:
            return None
        values = self._held.get(place.object)
        if values is None:
            values = self._read_again(place.object)
        return None if values is None else values[place.start : place.end]

    def _read_again(self, name: str) -> bytes | None:
        with self._reading:
            if (values := self._held.get(name)) is not None:
                return values
            content = self._read(name)
            return None if content is None else self._hold(name, content.values)

    def _index(self, name: str, content: StoredAnswers) -> None:
        ends = [0, *accumulate(content.lengths)]
        names = content.names
        for number in range(len(content)):
            at = number * DIGEST_BYTES
            place = _StoredValue(name, ends[number], ends[number + 1])
            self._places.setdefault(names[at : at + DIGEST_BYTES], place)
        if self._held_now + len(content.values) <= self._held_bytes:
            self._hold(name, content.values)

    def _hold(self, name: str, values: bytes) -> bytes:
        """Keep an object's values in memory, in the place of others if there are too many."""
        self._held[name] = values
        self._held_now += len(values)
        while self._held_now > self._held_bytes and len(self._held) > 1:
            oldest = next(iter(self._held))
            self._held_now -= len(self._held.pop(oldest))
        return values

    def _read(self, name: str) -> StoredAnswers | None:
        try:
            return stored_answers(self._storage.get(name), f"{name} in {self._storage.url}")
        except (CorruptStateError, ObjectNotFoundError) as error:
            if not self._has_logged:
                self._has_logged = True
                _log.warning("kept answers are not used, and their calls are made again: %s", error)
            return None
