"""Watches all operators of a state directory, or those that were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.observing.operators import StoredOperator, stored_operators
from forebay_state_api.observing.watching import OperatorView, OperatorWatch
from forebay_state_api.versions.contents import what_is_there

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_THREADS: Final = 8
LIST_EVERY: Final = 10
"""Refreshes until operators that are new are looked for."""


class DirectoryWatch:
    """Reads the operators of a state directory again and again."""

    def __init__(
        self, root: ObjectStorage, *, query: str | None = None, uid: str | None = None
    ) -> None:
        """Watch all operators, or those of one query, or of one uid."""
        self._root = root
        self._query = query
        self._uid = uid
        self._refreshes = 0
        self._watches: dict[StoredOperator, OperatorWatch] = {}

    def refresh(self) -> Mapping[StoredOperator, OperatorView]:
        """Return a view of each operator, by its names.

        Makes at most three requests for each operator; once in `LIST_EVERY` times, one for each
        query in addition. Raises `ConfigurationError` if there is no state, `StorageError`.
        """
        if self._refreshes % LIST_EVERY == 0:
            self._find()
        watches = list(self._watches.values())
        views = dict(zip(self._watches, self._views(watches), strict=True))
        found = {one: view for one, view in views.items() if view.listing.objects}
        if not found:
            raise self._nothing()
        self._refreshes += 1
        return found

    def _find(self) -> None:
        found = stored_operators(self._root, query=self._query, uid=self._uid)
        self._watches = {
            one: self._watches.get(one) or OperatorWatch(one.storage(self._root)) for one in found
        }

    def _views(self, watches: Sequence[OperatorWatch]) -> Sequence[OperatorView]:
        if len(watches) < 2 or not self._root.waits:  # noqa: PLR2004 - threads only cost then
            return [watch.refresh() for watch in watches]
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(OperatorWatch.refresh, watches))

    def _nothing(self) -> ConfigurationError:
        if self._query is not None:
            asked = StoredOperator.named(self._query, self._uid or "uid")
            there = f": {what_is_there(asked.storage(self._root))}"
        else:
            there = "" if self._uid is None else f" under the uid {self._uid!r}"
        return ConfigurationError(f"no state is stored in {self._root.url}{there}")
