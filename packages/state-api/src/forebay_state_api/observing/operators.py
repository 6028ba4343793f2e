"""The operators of a state directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_state_api.versions.contents import name_of
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.layout import escaped, operator_folder

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
    """Return all operators, or those of one query, or one, by name.

    Makes one list request, and one for each query; none if both names are given.
    """
    if query is not None and uid is not None:
        return [StoredOperator.named(query, uid)]
    if query is not None:
        queries = [escaped(query, "the query")]
    else:
        # A folder with a dot in its name does not belong to a query.
        queries = [folder for folder in root.list_folders() if "." not in folder]
    found = (
        StoredOperator(name_of(folder), name_of(part), f"{folder}/{part}")
        for folder in queries
        for part in root.list_folders(folder)
    )
    return sorted(one for one in found if uid is None or one.uid == uid)
