"""Object storage: the few operations that versions and backends need, and who provides them.

The contract that the protocol rests on (checked by ``forebay doctor``): a put is all-or-nothing, a
list after a put shows it, put-if-absent lets exactly one caller win. All methods block, and all
may be called from several threads at once. What fails in passing is tried again for
``spark.forebay.storage.retry-budget``; then it is a `StorageError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from obstore.exceptions import BaseError
from obstore.store import from_url

from forebay_state_api._storage.contract import (
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStorage,
    checked_name,
    checked_prefix,
)
from forebay_state_api._storage.obstores import (
    LocalDirectory,
    LocalStorage,
    MemoryStorage,
    ObstoreStorage,
    Opened,
)
from forebay_state_api._storage.options import CLOUD_SCHEMES, StorageOptions
from forebay_state_api._storage.retry import Retry, RetryingStorage
from forebay_state_api.errors import ConfigurationError

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

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")
"""How a URL begins; one letter is a Windows drive."""


def open_storage(url: str | Path, options: Mapping[str, Any] | None = None) -> ObjectStorage:
    """Open a directory or URL; nothing is created or checked before the first operation.

    A path may begin with ``~`` and may be relative to the working directory. ``options`` are
    ``spark.forebay.storage.*`` without what is before the ``*``: ``retry-budget``,
    ``request-timeout`` and ``connect-timeout`` (seconds), ``endpoint`` and ``region``, and by their
    own names those of the store (``aws_access_key_id``) or of the plugin that serves the scheme.
    """
    text = located(str(url))
    scheme = _scheme_of(text)
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


def located(text: str) -> str:
    """Return an absolute path for a path or a ``file:`` URL, and any other URL as it is.

    Raises `ConfigurationError` for what is only nearly a URL, of which a part would be ignored or
    which would be taken for a path, and for a URL that has a password in it.
    """
    if not text:
        msg = "the state directory is an empty string; name a directory or a URL"
        raise ConfigurationError(msg)
    scheme = _scheme_of(text)
    if scheme == "file":
        text = _path_of(text)
    elif scheme == "dbfs" and not text.startswith("dbfs://"):
        return f"dbfs://{text[len('dbfs:') :]}"  # as Databricks spells it: dbfs:/path
    elif scheme:
        _check_url(text, scheme)
        return text
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError as error:
        msg = f"the state directory {text!r} cannot be found: {error}"
        raise ConfigurationError(msg) from error


def _scheme_of(text: str) -> str:
    """In lower case; ``""`` of a path."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else ""


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        msg = (
            f"{url!r} is no URL of a local directory: write file:///absolute/path, with %23 for # "
            "and %3F for ?, or the path itself"
        )
        raise ConfigurationError(msg)
    return url2pathname(parts.path)


def _check_url(url: str, scheme: str) -> None:
    if not url[len(scheme) :].startswith("://"):
        msg = (
            f"{url!r} is neither a path nor a URL: URLs begin with {scheme}:// (a Path object "
            "drops one of the slashes: pass a str), and a directory of that name is "
            f"{'./' + url!r}"
        )
        raise ConfigurationError(msg)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        msg = f"{url!r} is no URL: {error}"
        raise ConfigurationError(msg) from error
    if parts.password is not None:
        msg = (
            f"the URL of the storage at {parts.hostname} has a password in it, which would show "
            "in messages: set spark.forebay.storage.* instead"
        )
        raise ConfigurationError(msg)


def _open_local(path: Path) -> ObstoreStorage:
    if path.exists() and not path.is_dir():
        msg = f"{path} is a file, not a directory for state"
        raise ConfigurationError(msg)
    return LocalStorage(path, LocalDirectory(path))


def _open_cloud(url: str, scheme: str, options: StorageOptions) -> ObstoreStorage:
    config = options.config(url, scheme)
    try:
        store = from_url(
            url,
            config=cast("Any", config or None),
            client_options=cast("Any", options.client(config) or None),
            retry_config=cast("Any", options.retries()),
        )
    except (BaseError, ValueError) as error:
        cause = str(error).partition("\n\nDebug source")[0]
        msg = f"storage at {url!r} cannot be opened: {cause}"
        raise ConfigurationError(msg) from error
    return ObstoreStorage(Opened(store), url.rstrip("/"))


def _open_plugin(scheme: str, url: str, options: StorageOptions) -> ObjectStorage:
    # Imported here: only a foreign scheme needs plugins.
    from forebay_state_api.plugins import plugins

    opener: Callable[[str, Mapping[str, Any]], ObjectStorage] = plugins().storage(scheme)
    return opener(url, options.of_a_network)
