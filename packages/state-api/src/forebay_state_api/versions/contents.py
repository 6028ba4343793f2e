"""List the queries and operators in a state directory, for messages about a wrong name or path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from forebay_state_api.versions.layout import unescaped

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.versions.folder import OperatorStorage

_MOST: Final = 100
"""The most queries to look at; each costs one list request."""
_SHOWN: Final = 10


def stored_uids(root: ObjectStorage, query_folder: str) -> Sequence[str]:
    """Return the uids of the operators that a query has state of, sorted."""
    return sorted(map(name_of, root.list_folders(query_folder)))


def stored_queries(root: ObjectStorage) -> Mapping[str, Sequence[str]]:
    """Return query → its uids, for the first queries of a state directory."""
    # A folder with a dot in its name does not belong to a query.
    folders = [folder for folder in root.list_folders() if "." not in folder]
    uids = ((name_of(folder), stored_uids(root, folder)) for folder in islice(folders, _MOST))
    return {query: found for query, found in uids if found}


def what_is_there(storage: OperatorStorage) -> str:
    """Describe what is stored where an operator was looked for and not found, for a message."""
    query_folder, _, _ = storage.folder.rpartition("/")
    query, uids = name_of(query_folder), stored_uids(storage.root, query_folder)
    if uids:
        return f"query {query!r} has state of {listed(uids)}"
    queries = stored_queries(storage.root)
    if not queries:
        return "the state directory holds no query's state"
    found = [f"{name!r} ({listed(uids)})" for name, uids in queries.items()]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"nothing is stored of query {query!r}; there are {', '.join(found[:_SHOWN])}{more}"


def listed(names: Sequence[str]) -> str:
    """Return names for a message, shortened if there are many."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(repr, names[:_SHOWN]))}{more}"


def name_of(folder: str) -> str:
    """Return the name of the query or operator whose folder this is."""
    try:
        return unescaped(folder)
    except UnicodeError:  # not one of ours
        return folder
