"""Between tasks, a worker process keeps up with the subtasks that other processes ran.

Spark hands a task to whichever of its worker processes has been idle longest, and tasks race for
them: a process meets the subtasks in turn, and finds what it kept of each behind by the batches
since. It catches up here, while the driver plans the next micro-batch.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from forebay_state_api.siblings import Siblings

_log = logging.getLogger(__name__)

_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4)
"""Before each look at what siblings have committed: they end at about the same time. The first one
lets the task hand on its last rows."""
_NICENESS: Final = 10
"""Of the thread: the driver may be on the same machine, and its planning comes first."""


def follow(siblings: Siblings | None) -> threading.Thread | None:
    """Catch up with the siblings; the thread, a daemon, or ``None`` if there is nothing to do."""
    if siblings is None or not siblings.behind:
        return None
    thread = threading.Thread(
        target=_follow, args=(siblings,), name="forebay-following", daemon=True
    )
    thread.start()
    return thread


def _follow(siblings: Siblings) -> None:
    try:
        if sys.platform == "linux":  # elsewhere a priority is that of the process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            siblings.catch_up()
            if not siblings.behind:
                return
    except Exception:  # noqa: BLE001 - a task that misses a copy reads the state anew
        _log.exception("what this process keeps of other subtasks stays behind")
