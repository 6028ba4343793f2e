"""Writes answers on a thread of its own, so that no call waits for storage.

An object is put when there are `OBJECT_BYTES` of answers, and after a second, or a hundredth of the
time so far if that is longer: so a process that is killed loses little, and a long micro-batch has
few objects. The last object is put before the version is committed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from forebay_engine.journal.answer_objects import Answer, sealed_answers
from forebay_state_api.errors import NoThreadError
from forebay_state_api.threads import start_thread

_log = logging.getLogger(__name__)

OBJECT_BYTES: Final = 1 << 20
"""Bytes of answers after which an object is put."""
MOST_BYTES: Final = 64 << 20
"""Bytes of answers that may wait for storage; more are dropped."""
INTERVAL_S: Final = 1.0
"""The shortest time between two objects that are not full, …"""
INTERVAL_SHARE: Final = 0.01
"""… and the share of the time so far that it is at least."""
FLUSH_S: Final = 5.0
"""The longest time that a failed task waits for its answers to be written."""
_OVERHEAD: Final = 20
"""Bytes of an answer besides its value."""


class AnswerWriter:
    """Puts the answers of one task attempt. All methods but the thread's are the task thread's."""

    def __init__(
        self, put: Callable[[bytes], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``put`` stores an object; it is called on the writer's thread, for one after another."""
        self._put: Final = put
        self._clock: Final = clock
        self._began: Final = clock()
        self._changed: Final = threading.Condition()
        self._waiting: list[Answer] = []
        self._waiting_bytes = 0
        self._writing_bytes = 0
        self._first_at = 0.0
        self._ending = False
        self._thread: threading.Thread | None = None
        self._has_failed = False
        self.kept_bytes = 0
        """Bytes of the objects that were put."""
        self.dropped = 0
        """Answers that were not kept, because storage was too slow or failed."""

    def add(self, name: bytes, value: bytes) -> None:
        """Keep an answer, unless `MOST_BYTES` wait for storage."""
        size = len(value) + _OVERHEAD
        with self._changed:
            if self._waiting_bytes + self._writing_bytes + size > MOST_BYTES:
                self.dropped += 1
                return
            self._waiting.append((name, value))
            self._waiting_bytes += size
            if len(self._waiting) == 1:
                self._first_at = self._clock()
                self._changed.notify()
            elif self._waiting_bytes >= OBJECT_BYTES:
                self._changed.notify()
        if self._thread is None:
            self._start()

    def due_in_s(self) -> float | None:
        """Return the seconds until the next object is to be put; ``None`` without answers."""
        if not self._waiting:
            return None
        if self._ending or self._waiting_bytes >= OBJECT_BYTES:
            return 0.0
        now = self._clock()
        interval = max(INTERVAL_S, INTERVAL_SHARE * (now - self._began))
        return max(self._first_at + interval - now, 0.0)

    def end(self) -> None:
        """Let the thread put what is left, and end."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until everything is put, after `end`; at most ``timeout_s`` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        elif self._waiting:
            self._write(self._taken())

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="forebay-answers", daemon=True)
        try:
            start_thread(thread)
        except NoThreadError as error:
            # `join` writes what is there by then.
            _log.debug("answers are written at the end of the task: %s", error)
        else:
            self._thread = thread

    def _run(self) -> None:
        while (answers := self._next()) is not None:
            self._write(answers)

    def _next(self) -> list[Answer] | None:
        """Wait for the next object's answers; ``None`` at the end."""
        with self._changed:
            while True:
                due_s = self.due_in_s()
                if due_s == 0.0:
                    return self._taken()
                if due_s is None and self._ending:
                    return None
                self._changed.wait(due_s)

    def _taken(self) -> list[Answer]:
        answers, self._waiting = self._waiting, []
        self._writing_bytes, self._waiting_bytes = self._waiting_bytes, 0
        return answers

    def _write(self, answers: list[Answer]) -> None:
        try:
            data = sealed_answers(answers)
            self._put(data)
        except Exception as error:  # noqa: BLE001 - the calls were answered, and the task goes on
            self.dropped += len(answers)
            if not self._has_failed:
                self._has_failed = True
                _log.warning("answers of calls are not kept: %s", error)
        else:
            self.kept_bytes += len(data)
        with self._changed:
            self._writing_bytes = 0
