"""A state directory: the operators that are stored in it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from forebay_console.watching.operator import OperatorView, WatchedOperator
from forebay_console.watching.refreshed_value import RefreshedValue
from forebay_state_processor.observing import FoundOperators, StoredOperator, find_operators
from forebay_state_processor.observing.directory import look_at

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

OPERATORS_S: Final = 5.0
"""The default seconds after which operators are listed again."""


@attrs.frozen(kw_only=True)
class DirectoryViews:
    """The result of one refresh of a state directory."""

    operators: Mapping[StoredOperator, OperatorView | Exception]
    """The view of each, or the error of reading it; sorted by query and uid."""
    unlisted: Mapping[str, Exception]
    """Query → why its operators could not be listed; operators that are known already are still
    read."""


class StateDirectory:
    """The operators of a state directory, each watched with one cache for all viewers."""

    def __init__(
        self,
        root: ObjectStorage,
        settings: Settings,
        *,
        ttl_s: float,
        operators_s: float = OPERATORS_S,
    ) -> None:
        """Nothing is read yet.

        :param ttl_s: for how many seconds a listing of an operator is shown: one request.
        :param operators_s: for how many seconds the list of operators is shown: one request, and
            one for each query.
        """
        self.root: Final = root
        self.settings: Final = settings
        self._ttl_s: Final = ttl_s
        self._found: Final = RefreshedValue(self._find, operators_s)
        self._lock: Final = threading.Lock()
        self._watched: Mapping[StoredOperator, WatchedOperator] = {}

    @property
    def url(self) -> str:
        """The location, as text for people."""
        return self.root.url

    def operators(self) -> Sequence[WatchedOperator]:
        """Return all operators, sorted by query and uid.

        Of a query that cannot be listed these are the ones that were known before.
        """
        return list(self._watched_of(self._found.get()).values())

    def looks(self) -> DirectoryViews:
        """Look at all operators. Raises the error of listing them if no query can be listed."""
        found = self._found.get()
        operators = look_at(self.root, self._watched_of(found), WatchedOperator.look)
        return DirectoryViews(operators=operators, unlisted=found.unlisted)

    def unlisted(self) -> Mapping[str, Exception]:
        """Return query → why its operators could not be listed."""
        return self._found.get().unlisted

    def by_folder(self) -> Mapping[str, WatchedOperator]:
        """Return operator's folder → operator."""
        return {one.stored.folder: one for one in self.operators()}

    def _find(self) -> FoundOperators:
        return find_operators(self.root, known=self._watched)

    def _watched_of(self, found: FoundOperators) -> Mapping[StoredOperator, WatchedOperator]:
        with self._lock:
            known = self._watched
            self._watched = {
                one: known.get(one) or WatchedOperator(self.root, one, ttl_s=self._ttl_s)
                for one in found.operators
            }
            return self._watched
