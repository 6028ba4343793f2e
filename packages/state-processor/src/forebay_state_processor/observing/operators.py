"""The operators of a state directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.format.directory_contents import name_of
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.layout import escaped, operator_folder

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(order=True)
class StoredOperator:
    """An operator's names, and its folder below the state directory."""

    query: str
    uid: str
    folder: str

    @classmethod
    def named(cls, query: str, uid: str) -> StoredOperator:
        """Return an operator of these names, whether or not it is stored."""
        return cls(query, uid, operator_folder(query, uid))

    def storage(self, root: ObjectStorage) -> OperatorStorage:
        """Return the operator's folder in the state directory ``root``."""
        return OperatorStorage(root, self.folder)


def stored_operators(
    root: ObjectStorage, *, query: str | None = None, uid: str | None = None
) -> Sequence[StoredOperator]:
    """Return all operators, the operators of one query, or one, by name.

    Makes one list request, and one for each query; none if both names are given.
    """
    if query is not None and uid is not None:
        return [StoredOperator.named(query, uid)]
    folders = _query_folders(root, query)
    found = [one for folder in folders for one in _operators_of(root, folder)]
    return sorted(one for one in found if uid is None or one.uid == uid)


@attrs.frozen(kw_only=True)
class FoundOperators:
    """The operators that could be found."""

    operators: Sequence[StoredOperator]
    unlisted: Mapping[str, Exception]
    """Query → why its operators could not be listed."""


def find_operators(
    root: ObjectStorage,
    *,
    query: str | None = None,
    uid: str | None = None,
    known: Iterable[StoredOperator] = (),
) -> FoundOperators:
    """Find operators as `stored_operators` does, without failing at the first error.

    A query that cannot be listed does not affect the others.

    Raises the first error if no query can be listed.

    :param known: the previous result, which is kept for a query that cannot be listed.
    """
    if query is not None and uid is not None:
        return FoundOperators(operators=[StoredOperator.named(query, uid)], unlisted={})
    folders = _query_folders(root, query)
    found: list[StoredOperator] = []
    unlisted: dict[str, Exception] = {}
    for folder in folders:
        try:
            found += _operators_of(root, folder)
        except Exception as error:  # noqa: BLE001 - a credential without rights
            unlisted[name_of(folder)] = error
    if unlisted and len(unlisted) == len(folders):
        raise next(iter(unlisted.values()))
    found += [one for one in known if one.query in unlisted]
    chosen = sorted(one for one in found if uid is None or one.uid == uid)
    return FoundOperators(operators=chosen, unlisted=unlisted)


def _query_folders(root: ObjectStorage, query: str | None) -> Sequence[str]:
    """Return the folders of all queries, or of one by name."""
    if query is not None:
        return [escaped(query, "the query")]
    # A folder with a dot in its name does not belong to a query.
    return [folder for folder in root.list_folders() if "." not in folder]


def _operators_of(root: ObjectStorage, folder: str) -> Sequence[StoredOperator]:
    """Return the operators of the query with this folder."""
    query = name_of(folder)
    parts = root.list_folders(folder)
    return [StoredOperator(query, name_of(part), f"{folder}/{part}") for part in parts]
