"""Probe, with small objects, whether a storage keeps the contract that the protocol relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.format import layout
from forebay_state_api.contract.file_names import random_id
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import StorageError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_RIVALS: Final = 8
_CONTENT: Final = bytes(range(256))
_FIRST: Final = "a/object"


@attrs.frozen
class ProbeFinding:
    """The result of one probe."""

    promise: str
    """The property that the storage must have."""
    problem: str
    """The violation that was seen; empty if it has the property."""


def examine(storage: ObjectStorage) -> Iterator[ProbeFinding]:
    """Probe each property in turn, in a new folder that is cleared at the end.

    If the storage accepts no object at all, the probe stops there.
    """
    folder = storage.child(f"{layout.PROBES}/{random_id()}")
    try:
        folder.put(_FIRST, _CONTENT)
    except Exception as error:  # noqa: BLE001 - a plugin's storage may raise anything
        yield ProbeFinding("an object can be put", f"{_error_text(error)}; nothing else was probed")
        return
    try:
        for promise, probe in _PROBES.items():
            yield ProbeFinding(promise, _outcome(probe, folder))
    finally:
        with suppress(Exception):  # a finding already names the reason
            folder.delete([info.name for info in folder.list()])


def _outcome(probe: Callable[[ObjectStorage], str], folder: ObjectStorage) -> str:
    try:
        return probe(folder)
    except Exception as error:  # noqa: BLE001 - a plugin's storage may raise anything
        return _error_text(error)


def _error_text(error: Exception) -> str:
    if isinstance(error, StorageError):
        return str(error)
    return f"it raises {type(error).__name__} instead of a StorageError: {error}"


def _put_and_get(folder: ObjectStorage) -> str:
    return "" if folder.get(_FIRST) == _CONTENT else "it gave back other bytes"


def _ranges(folder: ObjectStorage) -> str:
    found = folder.get_ranges(_FIRST, [(250, 6), (0, 2)])
    return "" if found == [_CONTENT[250:], _CONTENT[:2]] else "it gave back other bytes"


def _list_after_put(folder: ObjectStorage) -> str:
    for number in range(_RIVALS):
        folder.put(f"list/{number}", b"x")
        if len(folder.list("list")) != number + 1:
            return f"object {number} was missing in a list that began after its put"
    return "" if "list" in folder.list_folders() else "its folder was missing in a list"


def _get_after_miss(folder: ObjectStorage) -> str:
    for number in range(_RIVALS):
        name = f"missed/{number}"
        try:
            folder.get(name)
        except ObjectNotFoundError:
            folder.put(name, _CONTENT)
        else:
            return "an object that was never put could be read"
        try:
            folder.get(name)
        except ObjectNotFoundError:
            return f"object {number} could not be read after its put: a get before it had missed it"
    return ""


def _one_winner(folder: ObjectStorage) -> str:
    with ThreadPoolExecutor(_RIVALS) as rivals:
        contents = [str(number).encode() for number in range(_RIVALS)]
        won = list(rivals.map(lambda data: folder.put_if_absent("only/one", data), contents))
    if sum(won) != 1:
        return f"{sum(won)} of {_RIVALS} rivals won"
    return "" if folder.get("only/one") == contents[won.index(True)] else "a loser's bytes stayed"


def _delete(folder: ObjectStorage) -> str:
    folder.delete([_FIRST, "never/was"])
    try:
        folder.get(_FIRST)
    except ObjectNotFoundError:
        return "a deleted object was listed" if folder.list("a") else ""
    return "a deleted object could be read"


_PROBES: Final[dict[str, Callable[[ObjectStorage], str]]] = {
    "a get gives back what was put": _put_and_get,
    "ranges can be read": _ranges,
    "a list after a put shows it": _list_after_put,
    "put-if-absent has one winner": _one_winner,
    "a get after a put finds it, whatever was asked before": _get_after_miss,
    "a deleted object is gone": _delete,
}
