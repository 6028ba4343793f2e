"""Runs the janitor in a worker: an occasional pass on its own thread, whose failure is logged."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from forebay_engine.versions.cleaning.cadence import FolderPasses, is_due, pass_every
from forebay_engine.versions.cleaning.deletions import one_line
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import ForebayError
from forebay_state_api.plugins import plugins

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

_log = logging.getLogger(__name__)

_MOST_FOLDERS: Final = 64

_at_work: Final[set[str]] = set()
"""The folders that threads of this process are sweeping."""
_passes: Final[OrderedDict[str, FolderPasses]] = OrderedDict()
"""Folder → the passes of this process over it, of the folders that were swept last."""
_lock: Final = threading.Lock()
_pool: Final = DaemonPool("forebay-janitor")


def clear_if_due(
    storage: ObjectStorage,
    *,
    run_key: str,
    version: int,
    subtask: int,
    settings: Settings,
    opened: int | None = None,
) -> bool:
    """Start a janitor pass over an operator's folder if one is due; return whether it started.

    No pass starts while another pass over the folder is running in this process, nor within a part
    of the minimum age after one began here (`cadence`).

    :param storage: the operator's folder.
    :param run_key: the key of the run that committed.
    :param version: the version that has just been committed; it decides whether a pass is due.
    :param subtask: the subtask that committed it.
    :param settings: the operator's settings ``retention`` and ``janitor.min-age``.
    :param opened: the version that ``version`` was made from; ``version - 1`` if not given.
    """
    if not is_due(version, subtask, pass_every(settings["retention"]), opened=opened):
        return False
    min_age = timedelta(seconds=settings["janitor.min-age"])
    with _lock:
        passes = _passes_over(storage.url)
        if storage.url in _at_work or not passes.may_begin(min_age):
            return False
        _at_work.add(storage.url)
    janitor = Janitor(
        storage,
        run_key=run_key,
        retention=settings["retention"],
        min_age=min_age,
        remembered=passes.remembered,
    )
    clear = functools.partial(
        plugins().backend(settings["state.backend"]).clear,
        storage,
        settings.backend_options(),
        retry_budget_s=settings["storage.retry-budget"],
    )
    sweep = functools.partial(_sweep, janitor, clear, storage.url, version)
    begun = _pool.do_if_possible(sweep)
    with _lock:
        if begun:
            passes.begun()
        else:
            _at_work.discard(storage.url)
    return begun


def _passes_over(url: str) -> FolderPasses:
    """Return this process's record of passes over a folder; call it with the lock."""
    passes = _passes.setdefault(url, FolderPasses(_seconds))
    _passes.move_to_end(url)
    while len(_passes) > _MOST_FOLDERS:
        _passes.popitem(last=False)
    return passes


def _seconds() -> float:
    return time.monotonic()


def finish_pass() -> None:
    """Wait for the pass that runs, if any."""
    finished = threading.Event()
    if _at_work and _pool.do_if_possible(finished.set):
        finished.wait()


def _sweep(janitor: Janitor, clear: Callable[[], None], url: str, version: int) -> None:
    """One pass; ``clear`` is `StateBackend.clear`."""
    try:
        swept = janitor.sweep(version)
        clear()
        _log.info("janitor of %s: %d objects deleted", url, len(swept.names))
    except ForebayError as error:
        _log.warning("janitor of %s: %s; the next pass tries again", url, one_line(error))
    except Exception:  # noqa: BLE001 - no failure of the janitor may fail the batch
        _log.exception("janitor of %s failed; the next pass tries again", url)
    finally:
        with _lock:
            _at_work.discard(url)
