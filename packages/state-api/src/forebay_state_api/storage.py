"""Object storage: the few operations that versions and backends need, and who provides them.

The contract that the protocol rests on (checked by ``forebay doctor``): a put is all-or-nothing, a
list after a put shows it, put-if-absent lets exactly one of callers with bytes of their own win.
All methods block, and all may be called from several threads at once. What fails in passing is
tried again for ``spark.forebay.storage.retry-budget``; then it is a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from obstore.store import from_url

from forebay_state_api._storage.contract import (
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStorage,
    checked_name,
    checked_prefix,
)
from forebay_state_api._storage.faults import is_from_obstore, words_of
from forebay_state_api._storage.obstores import (
    Deferred,
    LocalDirectory,
    LocalStorage,
    MemoryStorage,
    ObstoreStorage,
    Opened,
)
from forebay_state_api._storage.options import CLOUD_SCHEMES, StorageOptions
from forebay_state_api._storage.retry import Retry, RetryingStorage
from forebay_state_api._storage.urls import located, scheme_of
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = [
    "MemoryStorage",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStorage",
    "ObstoreStorage",
    "Retry",
    "RetryingStorage",
    "checked_name",
    "checked_prefix",
    "located",
    "open_storage",
]


def open_storage(url: str | Path, options: Mapping[str, Any] | None = None) -> ObjectStorage:
    """Open a directory or URL; nothing is created or checked before the first operation.

    A path may begin with ``~`` and may be relative to the working directory. ``options`` are
    ``spark.forebay.storage.*`` without what is before the ``*``: ``retry-budget``,
    ``request-timeout`` and ``connect-timeout`` (seconds), ``endpoint`` and ``region``, and by their
    own names those of the store (``aws_access_key_id``) or of the plugin that serves the scheme.
    """
    text = located(str(url))
    scheme = scheme_of(text)
    if scheme == "memory":
        _refuse(text, options or {})
        return MemoryStorage(text)
    given = StorageOptions.of(options or {})
    if scheme in CLOUD_SCHEMES:
        storage: ObjectStorage = _open_cloud(text, scheme, given)
    elif scheme:
        storage = _open_plugin(scheme, text, given)
    else:
        _refuse(text, given.of_a_network)
        storage = _open_local(Path(text))
    return RetryingStorage(storage, Retry(budget_s=given.retry_budget_s))


def _refuse(text: str, options: Mapping[str, Any]) -> None:
    names = sorted(options.keys() - {"retry-budget"})
    if names:
        msg = f"storage at {text!r} takes no options, but was given {', '.join(names)}"
        raise ConfigurationError(msg)


def _open_local(path: Path) -> ObstoreStorage:
    if path.exists() and not path.is_dir():
        msg = f"{path} is a file, not a directory for state"
        raise ConfigurationError(msg)
    return LocalStorage(path, LocalDirectory(path))


def _open_cloud(url: str, scheme: str, options: StorageOptions) -> ObstoreStorage:
    try:
        store = _store(url, scheme, options)
    except BaseException as error:
        if not is_from_obstore(error):
            raise
        names = ", ".join(f"spark.forebay.storage.{n}" for n in _at_fault(url, scheme, options))
        given = f" with {names}" if names else ""
        msg = f"storage at {url!r} cannot be opened{given}: {words_of(error)}"
        raise ConfigurationError(msg) from error
    # Of a put-if-absent only `RetryingStorage`, which knows of the tries before, may try again.
    once = Deferred(lambda: _store(url, scheme, options, {"max_retries": 0}))
    return ObstoreStorage(Opened(store), url.rstrip("/"), once=once)


def _store(
    url: str, scheme: str, options: StorageOptions, retries: Mapping[str, Any] | None = None
) -> ObjectStore:
    return from_url(
        url,
        config=cast("Any", options.config(url, scheme) or None),
        client_options=cast("Any", options.client(scheme) or None),
        retry_config=cast("Any", retries or options.retries()),
    )


def _at_fault(url: str, scheme: str, options: StorageOptions) -> list[str]:
    """Return the option without which the store opens, and all of them if there is not one."""
    names = sorted(options.of_a_network)
    for name in names:
        try:
            _store(url, scheme, options.without(name))
        except BaseException as error:
            if not is_from_obstore(error):
                raise
        else:
            return [name]
    return names


def _open_plugin(scheme: str, url: str, options: StorageOptions) -> ObjectStorage:
    # Imported here: only a foreign scheme needs plugins.
    from forebay_state_api.plugins import plugins

    opener: Callable[[str, Mapping[str, Any]], ObjectStorage] = plugins().storage(scheme)
    return opener(url, options.of_a_network)
