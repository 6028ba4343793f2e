"""List the queries and operators in a state directory, for messages about a wrong name or path."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from forebay_engine.versions.format.layout import escaped, unescaped
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage.urls import is_missing

if TYPE_CHECKING:
    from forebay_engine.versions.format.folder import OperatorStorage
    from forebay_state_api.contract.object_storage import ObjectStorage

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


def what_is_there(root: ObjectStorage, query: str | None = None, uid: str | None = None) -> str:
    """Describe, for a message, what is stored where an operator was not found.

    ``None`` stands for any query or uid. A similar name is suggested.
    """
    if is_missing(root.url):
        return f"there is no directory {root.url}"
    uids = () if query is None else stored_uids(root, escaped(query, "the query"))
    if uids:
        return f"query {query!r} has state of {listed(uids)}{_meant(uid, uids)}"
    queries = stored_queries(root)
    if not queries:
        return "the state directory holds no query's state"
    found = [f"{name!r} ({listed(uids)})" for name, uids in queries.items()]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    near = _meant(query, queries) or _meant(uid, {one for uids in queries.values() for one in uids})
    nothing = "" if query is None else f"nothing is stored of query {query!r}; "
    return f"{nothing}there are {', '.join(found[:_SHOWN])}{more}{near}"


def unknown_operator_error(
    root: ObjectStorage, query: str | None = None, uid: str | None = None
) -> ConfigurationError:
    """Return the error for names that no stored operator has; it describes what is stored."""
    return ConfigurationError(f"no such operator in {root.url}: {what_is_there(root, query, uid)}")


def nothing_stored_error(
    storage: OperatorStorage, uid: str, wanted: str = ""
) -> ConfigurationError:
    """Return the error for an operator without a complete version, or without one as wanted."""
    query = name_of(storage.folder.rpartition("/")[0])
    there = what_is_there(storage.root, query, uid)
    return ConfigurationError(
        f"no state of operator {uid!r} is stored in {storage.url}{wanted}: {there}"
    )


def _meant(name: str | None, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name or "", [*names], n=1)
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""


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
