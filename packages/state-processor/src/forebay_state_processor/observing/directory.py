"""Watches all or some operators of a state directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from forebay_engine.versions.format.directory_contents import unknown_operator_error
from forebay_state_processor.observing.operators import StoredOperator, find_operators
from forebay_state_processor.observing.parallel_requests import for_each
from forebay_state_processor.observing.watching import REQUESTS, OperatorView, OperatorWatch

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

W = TypeVar("W")
V = TypeVar("V")

LIST_EVERY: Final = 10
"""Refreshes until operators that are new are looked for."""


class DirectoryWatch:
    """Reads the operators of a state directory again and again."""

    def __init__(
        self, root: ObjectStorage, *, query: str | None = None, uid: str | None = None
    ) -> None:
        """Watch all operators, or the operators of one query or uid."""
        self._root = root
        self._query = query
        self._uid = uid
        self._refreshes = 0
        self._watches: dict[StoredOperator, OperatorWatch] = {}
        self._views: dict[StoredOperator, OperatorView] = {}
        self._problems: dict[StoredOperator, Exception] = {}
        self._unlisted: Mapping[str, Exception] = {}

    @property
    def problems(self) -> Mapping[StoredOperator, Exception]:
        """The operators that could not be read at the last refresh.

        They have an older view, or no view.
        """
        return dict(self._problems)

    @property
    def unlisted(self) -> Mapping[str, Exception]:
        """The queries whose operators could not be listed when last tried; known ones stay."""
        return self._unlisted

    def refresh(self) -> Mapping[StoredOperator, OperatorView]:
        """Return the views of all operators that have one, by the operators' names.

        Makes at most `REQUESTS` requests for each operator. Once in `LIST_EVERY` times it looks for
        new operators instead of at those it knows: one request, and one for each query. An operator
        that cannot be read is among the `problems`, and a query that cannot be listed is
        `unlisted`. Raises `ConfigurationError` if there is no state, `StorageError`, and the first
        problem if no query can be listed or no operator can be read.
        """
        looks = self._refreshes % LIST_EVERY == 0
        if looks:
            self._find()
        if not (looks and self._views):
            self._look(1 if looks and self._searches else REQUESTS)
        found = {one: view for one, view in self._views.items() if view.listing.objects}
        if self._has_all and not (found or self._problems):
            raise next(iter(self._unlisted.values()), None) or unknown_operator_error(
                self._root, self._query, self._uid
            )
        self._refreshes += 1
        return found

    def views(self) -> Mapping[StoredOperator, OperatorView]:
        """Refresh until each operator has a view: a request for each 1,000 names, at first.

        An operator that cannot be read has no view.
        """
        found = self.refresh()
        while not self._has_all:
            found = self.refresh()
        return found

    @property
    def _has_all(self) -> bool:
        return self._views.keys() | self._problems.keys() == self._watches.keys()

    @property
    def _searches(self) -> bool:
        """Whether finding operators takes requests."""
        return self._query is None or self._uid is None

    def _find(self) -> None:
        query, uid, known = self._query, self._uid, self._watches
        seen = find_operators(self._root, query=query, uid=uid, known=known)
        found, self._unlisted = seen.operators, seen.unlisted
        self._watches = {
            one: known.get(one) or OperatorWatch(one.storage(self._root)) for one in found
        }
        self._views = {one: self._views[one] for one in found if one in self._views}
        self._problems = {one: self._problems[one] for one in found if one in self._problems}

    def _look(self, requests: int) -> None:
        """Refresh all operators; one that fails, or needs more requests, keeps its view."""
        refresh = partial(OperatorWatch.refresh, requests=requests)
        found = look_at(self._root, self._watches, refresh)
        self._problems = {one: view for one, view in found.items() if isinstance(view, Exception)}
        for one, view in found.items():
            if isinstance(view, OperatorView):
                self._views[one] = view
        if self._problems and self._problems.keys() == self._watches.keys():
            raise next(iter(self._problems.values()))


def look_at(
    root: ObjectStorage, watches: Mapping[StoredOperator, W], look: Callable[[W], V]
) -> Mapping[StoredOperator, V | Exception]:
    """Refresh operators, and return their views; an error in one does not affect the others."""

    def looked(watch: W) -> V | Exception:
        try:
            return look(watch)
        except Exception as error:  # noqa: BLE001 - a damaged name, a credential without rights
            return error

    return dict(zip(watches, for_each(root, [*watches.values()], looked), strict=True))


def seen(found: V | Exception) -> V:
    """Return the view of an operator from `look_at`. Raises the error of reading it."""
    if isinstance(found, Exception):
        raise found
    return found
