"""Keep the compaction services of this process, one per kind and state directory."""

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
    """Return the service ``name`` for the state directory ``storage``; the same object each time.

    ``storage_options`` are the options with which ``storage`` was opened. A forked process gets its
    own services, because a fork does not inherit its parent's threads and connections. Raises
    `UnknownPluginError` for a service that is not installed, and the errors of its ``open``. All
    services are closed when the process exits normally.
    """
    all_options = [sorted((given or {}).items()) for given in (options, storage_options)]
    key = (os.getpid(), name, storage.url, repr(all_options))
    with _lock:
        if key not in _services:
            service = plugins().compaction_service(name)
            _services[key] = service.open(storage, options or {})
        return _services[key]


def close_services() -> None:
    """Close the services that `service_of` opened in this process; the next call opens new ones."""
    with _lock:
        own = [key for key in _services if key[0] == os.getpid()]
        closed = [_services.pop(key) for key in own]
    for service in closed:
        service.close()


atexit.register(close_services)
