"""The janitor in a worker: a pass now and then, on a thread of its own, that breaks nothing."""

from __future__ import annotations

import functools
import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import ForebayError
from forebay_state_api.versions.janitor import Janitor, is_due, pass_every
from forebay_state_api.versions.leftovers import one_line

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

_log = logging.getLogger(__name__)

_at_work: Final[set[str]] = set()
"""Folders that a thread of this process is clearing."""
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
    """Start a pass over an operator's folder if ``version``, just committed, is one for it.

    ``opened`` is the version that it was made of; the one before if not given.

    Returns whether it did; no pass is due before the one before has ended.
    """
    if not is_due(version, subtask, pass_every(settings["retention"]), opened=opened):
        return False
    with _lock:
        if storage.url in _at_work:
            return False
        _at_work.add(storage.url)
    janitor = Janitor(
        storage,
        run_key=run_key,
        retention=settings["retention"],
        min_age=timedelta(seconds=settings["janitor.min-age"]),
    )
    _pool.do(functools.partial(_sweep, janitor, storage.url, version))
    return True


def _sweep(janitor: Janitor, url: str, version: int) -> None:
    try:
        swept = janitor.sweep(version)
        _log.info("janitor of %s: %d objects deleted", url, len(swept.names))
    except ForebayError as error:
        _log.warning("janitor of %s: %s; the next pass tries again", url, one_line(error))
    except Exception:  # noqa: BLE001 - the batch has nothing to do with it, whatever it is
        _log.exception("janitor of %s failed; the next pass tries again", url)
    finally:
        with _lock:
            _at_work.discard(url)
