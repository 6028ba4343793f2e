"""A state directory: the operators that are stored in it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from forebay_console.watching.fresh import Fresh
from forebay_console.watching.operator import OperatorView, WatchedOperator
from forebay_state_api.observing import StoredOperator, stored_operators
from forebay_state_api.observing.several import for_each

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

OPERATORS_S: Final = 5.0
"""The default seconds after which operators are listed again."""


@attrs.frozen(kw_only=True)
class Look:
    """An operator as it was looked at together with all others."""

    operator: WatchedOperator
    _found: OperatorView | Exception

    @property
    def stored(self) -> StoredOperator:
        """Its names and its folder."""
        return self.operator.stored

    def view(self) -> OperatorView:
        """Return the operator. Raises the error of reading it."""
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    @classmethod
    def at(cls, operator: WatchedOperator) -> Look:
        """Look at an operator; its error is raised where the view is used."""
        try:
            return cls(operator=operator, found=operator.look())
        except Exception as error:  # noqa: BLE001 - it must not stop the look at the others
            return cls(operator=operator, found=error)


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
        self._stored: Final = Fresh(lambda: stored_operators(root), operators_s)
        self._lock: Final = threading.Lock()
        self._watched: dict[str, WatchedOperator] = {}

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return self.root.url

    def operators(self) -> Sequence[WatchedOperator]:
        """Return all operators, sorted by query and uid."""
        stored = self._stored.get()
        with self._lock:
            known = self._watched
            self._watched = {
                one.folder: known.get(one.folder) or self._watch(one) for one in stored
            }
            return list(self._watched.values())

    def looks(self) -> Sequence[Look]:
        """Look at all operators, sorted by query and uid. Raises the errors of listing them."""
        return for_each(self.root, self.operators(), Look.at)

    def by_folder(self) -> Mapping[str, WatchedOperator]:
        """Return operator's folder → operator."""
        return {one.stored.folder: one for one in self.operators()}

    def _watch(self, stored: StoredOperator) -> WatchedOperator:
        return WatchedOperator(self.root, stored, ttl_s=self._ttl_s)
