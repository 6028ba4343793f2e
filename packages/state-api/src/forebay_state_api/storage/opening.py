"""Object storage: the few operations that versions and backends need, and who provides them.

The contract that the protocol rests on (checked by ``forebay doctor``): a put is all-or-nothing, a
list after a put shows it, put-if-absent lets exactly one of callers with bytes of their own win.
All methods block, and all may be called from several threads at once. What fails in passing is
tried again for ``spark.forebay.storage.retry-budget``; then it is a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forebay_state_api.contract.object_storage import (
    ObjectStorage,
)
from forebay_state_api.settings import RETRY_BUDGET
from forebay_state_api.storage.retry import Retry, RetryingStorage
from forebay_state_api.storage.urls import located, scheme_of


def open_storage(url: str | Path, options: Mapping[str, Any] | None = None) -> ObjectStorage:
    """Open a directory or URL; nothing is created or checked before the first operation.

    A path may begin with ``~`` and may be relative to the working directory. ``options`` are
    ``spark.forebay.storage.*`` without what is before the ``*``: ``retry-budget`` (seconds), and
    what the class that the hook ``forebay_storages`` gives for the scheme takes.
    """
    # Imported here: what it imports for the hooks imports this module.
    from forebay_state_api.plugins import plugins

    place, given = located(str(url)), {**(options or {})}
    budget_s = float(given.pop("retry-budget", RETRY_BUDGET.default_value()))
    scheme = scheme_of(place) or "file"
    opener: Callable[[str, Mapping[str, Any]], ObjectStorage] = plugins().storage(scheme)
    return RetryingStorage(opener(place, given), Retry(budget_s=budget_s))
