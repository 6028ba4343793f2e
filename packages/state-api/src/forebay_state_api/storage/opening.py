"""Open the object storage of a path or URL, with retries.

All methods block, and all may be called from several threads at once. A request that fails
transiently is retried for ``spark.forebay.storage.retry-budget``, and then raises a `StorageError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forebay_state_api.contract.object_storage import (
    ObjectStorage,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import RETRY_BUDGET
from forebay_state_api.storage.retry import RetryingStorage, RetryPolicy
from forebay_state_api.storage.urls import located, scheme_of


def open_storage(url: str | Path, options: Mapping[str, Any] | None = None) -> ObjectStorage:
    """Open a directory or URL; nothing is created or checked before the first operation.

    :param url: a path, which may begin with ``~`` and may be relative to the working directory,
        or a URL.
    :param options: the settings ``spark.forebay.storage.*`` by the part after ``storage.``:
        ``retry-budget`` (seconds), and the options of the class that the hook ``forebay_storages``
        returns for the scheme.

    Raises `ConfigurationError` for what is neither and for an option that the storage does not
    have, `UnknownPluginError` for a scheme that no plugin opens.
    """
    # Imported here to avoid a circular import: the hooks import this module.
    from forebay_state_api.plugins import plugins

    if not isinstance(url, str | os.PathLike):
        raise ConfigurationError(f"a directory is a path or a URL, not {url!r:.200}")
    place, given = located(str(url)), {**(options or {})}
    budget_s = float(given.pop("retry-budget", RETRY_BUDGET.default_value()))
    scheme = scheme_of(place) or "file"
    opener: Callable[[str, Mapping[str, Any]], ObjectStorage] = plugins().storage(scheme)
    opened = RetryingStorage(opener(place, given), RetryPolicy(budget_s=budget_s))
    opened.options = given
    return opened
