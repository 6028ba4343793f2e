"""Keeps a worker process's caches current with the subtasks that other processes ran.

Spark gives a task to the worker process that has been idle longest, and tasks race for them. So a
process runs different subtasks in turn, and its cached state of each is several batches old by
then. This module brings the cache up to date between tasks, while the driver plans the next
micro-batch. It uses one thread, which looks when no task has committed for a moment, so that the
cost does not grow with the number of subtasks.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from forebay_state_api.daemon_pool import DaemonPool

if TYPE_CHECKING:
    from forebay_engine.stored.sibling_caches import SiblingCaches

_log = logging.getLogger(__name__)

_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4)
"""The pauses before each look at the siblings' commits, which come at about the same time. During
the first pause the task yields its last rows. A commit restarts the sequence of pauses."""
_PATIENCE_S: Final = 1.0
"""The longest wait for a pause without commits; after it the thread looks anyway."""
_NICENESS: Final = 10
"""The thread's niceness: the driver may be on the same machine, and its planning comes first."""


class CatchUpThread:
    """Catches up with the siblings of the last subtask of each operator that committed here."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest: dict[str, SiblingCaches] = {}
        """The siblings to catch up with, by the operator's directory."""
        self._commits = 0
        self.pool = DaemonPool("forebay-catch-up")
        self._running = False

    def catch_up_with(self, siblings: SiblingCaches | None) -> None:
        """Catch up with ``siblings`` from now on, instead of an earlier subtask's siblings."""
        if siblings is None:
            return
        with self._changed:
            self._latest.pop(siblings.path, None)
            if siblings.behind:
                self._latest[siblings.path] = siblings
            self._commits += 1
            self._changed.notify_all()
            if self._latest and not self._running:
                self._running = self.pool.do_if_possible(self._run)

    def _run(self) -> None:
        try:
            if sys.platform == "linux":  # elsewhere a priority belongs to the process
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            looks = 0
            while not self._is_done(looks):
                looks = 1 if self._await_quiet(_PAUSES_S[looks]) else looks + 1
                self._catch_up()
        except Exception:  # noqa: BLE001 - a task without a cached copy reads the state itself
            _log.exception("the cached state of other subtasks stays out of date in this process")
            with self._changed:
                self._end()

    def _is_done(self, looks: int) -> bool:
        with self._changed:
            done = not self._latest or looks == len(_PAUSES_S)
            if done:
                self._end()
            return done

    def _end(self) -> None:
        self._latest.clear()
        self._running = False

    def _await_quiet(self, pause_s: float) -> bool:
        """Wait for a pause without commits; return whether a task committed before it."""
        patience = time.monotonic() + _PATIENCE_S
        with self._changed:
            began = self._commits
            while self._committed_within(pause_s) and time.monotonic() <= patience:
                pass
            return self._commits != began

    def _committed_within(self, pause_s: float) -> bool:
        seen = self._commits
        return self._changed.wait_for(lambda: self._commits != seen, pause_s)

    def _catch_up(self) -> None:
        with self._changed:
            latest = list(self._latest.items())
        for path, siblings in latest:
            siblings.catch_up()
            with self._changed:
                if not siblings.behind and self._latest.get(path) is siblings:
                    del self._latest[path]


_THREAD: Final = CatchUpThread()

catch_up_with: Final = _THREAD.catch_up_with
