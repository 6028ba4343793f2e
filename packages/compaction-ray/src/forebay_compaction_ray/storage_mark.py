"""Marks a state directory, so that client, gateway and workers can make sure they use the same one.

The mark is an object with a random id. A gateway puts it when it starts, and again if it was
deleted; a process that reads another id, or none, has another directory under the same name, or one
that is not mounted.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from forebay_state_api.contract.checksummed import TornObjectError, seal, unseal
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

NAME: Final = ".compaction/mark"
"""The object's name in the state directory."""
_CURE: Final = "Delete it: a gateway that runs puts another one"
_SHOWN: Final = 8
"""Characters of an id that people compare."""


def read(storage: ObjectStorage) -> str | None:
    """Return the mark's id; ``None`` without a mark. Raises `StorageError`, `CorruptStateError`."""
    where = f"{NAME} in {storage.url}"
    try:
        plain = unseal(storage.get(NAME), where)
    except (ObjectNotFoundError, TornObjectError):
        return None
    except CorruptStateError as damaged:
        raise CorruptStateError(f"{damaged}. {_CURE}") from damaged
    if not isinstance(found := plain.get("id"), str):
        raise CorruptStateError(f"{where} holds no id. {_CURE}")
    return found


def put(storage: ObjectStorage) -> str:
    """Mark the directory unless it is marked; return the mark's id.

    Of several callers at once one puts the mark, and all return its id. Raises `StorageError`,
    `CorruptStateError`.
    """
    if (found := read(storage)) is not None:
        return found
    mine = secrets.token_hex(16)
    if storage.put_if_absent(NAME, seal({"id": mine})):
        return mine
    if (found := read(storage)) is None:  # torn: nobody can have read it
        storage.put(NAME, seal({"id": mine}))
        found = mine
    return found


def shown(mark: str | None) -> str:
    """Return the mark as messages name it, for people to compare: its first digits."""
    return f"the mark {mark[:_SHOWN]}" if mark else "no mark"
