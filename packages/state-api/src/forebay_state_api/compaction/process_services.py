"""The compaction services of this process: one per kind and state directory, kept."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.plugins import plugins

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.object_storage import ObjectStorage

_services: Final[dict[tuple[int, str, str, str], CompactionService]] = {}
_lock: Final = threading.Lock()


def service_of(
    name: str,
    storage: ObjectStorage,
    options: Mapping[str, Any] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> CompactionService:
    """The service ``name`` for the state directory ``storage``: the same object at each call.

    ``storage_options`` are what ``storage`` was opened with. A forked process gets services of its
    own, for the threads and connections of its parent did not come with it. Raises
    `UnknownPluginError` for a service that is not installed, and what its ``open`` raises. All are
    closed when the process ends in order.
    """
    told = [sorted((given or {}).items()) for given in (options, storage_options)]
    key = (os.getpid(), name, storage.url, repr(told))
    with _lock:
        if key not in _services:
            service = plugins().compaction_service(name)
            _services[key] = service.open(storage, options or {})
        return _services[key]


def close_services() -> None:
    """Close what `service_of` has opened in this process; the next call opens anew."""
    with _lock:
        own = [key for key in _services if key[0] == os.getpid()]
        closed = [_services.pop(key) for key in own]
    for service in closed:
        service.close()


atexit.register(close_services)
