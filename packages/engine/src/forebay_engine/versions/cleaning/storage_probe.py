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
_NEIGHBOURS: Final = ("a", "b-c", "b/1/x", "b/2", "bb/1", "c")
"""Names below a folder, sorted, some of which begin like another one's folder."""
_OUTSIDE: Final = ("../a", "/a", "a/../b", "a//b", "a/", "")
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
        for promise, probe in PROBES.items():
            yield ProbeFinding(promise, _outcome(probe, folder))
    finally:
        with suppress(Exception):  # a finding already names the reason
            folder.delete([info.name for info in folder.list()])


def probed(storage: ObjectStorage, promise: str) -> str:
    """Probe one of `PROBES` in a storage's own folder; return the problem that was seen."""
    try:
        storage.put(_FIRST, _CONTENT)
    except Exception as error:  # noqa: BLE001 - a plugin's storage may raise anything
        return _error_text(error)
    return _outcome(PROBES[promise], storage)


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


def _range_past_the_end(folder: ObjectStorage) -> str:
    for start in (250, 256, 400):
        with suppress(StorageError):
            found = folder.get_ranges(_FIRST, [(start, 10)])
            return f"10 bytes from {start} of 256 were answered with {sum(map(len, found))}"
    return ""


def _neighbours(folder: ObjectStorage) -> str:
    below = _with_neighbours(folder)
    found = [info.name for info in below.list()]
    if found != [*_NEIGHBOURS]:
        return f"{', '.join(_NEIGHBOURS)} were listed as {', '.join(found)}"
    found = [info.name for info in below.list("b")]
    return "" if found == ["b/1/x", "b/2"] else f"the list of b has {', '.join(found) or 'nothing'}"


def _sizes_and_times(folder: ObjectStorage) -> str:
    sizes = {"sizes/0": 0, "sizes/1": 1, "sizes/256": 256}
    for name, size in sizes.items():
        folder.put(name, _CONTENT[:size])
    for info in folder.list("sizes"):
        if info.size != sizes[info.name]:
            return f"an object of {sizes[info.name]} bytes was listed with {info.size}"
        if info.modified.utcoffset() is None:
            return f"the time {info.modified} has no zone"
    return ""


def _pages(folder: ObjectStorage) -> str:
    below = _with_neighbours(folder)
    for after in ("", "a", "b", "b/1/x", "b0", "c"):
        found, last = [], after
        while True:
            page = below.list_page(last)
            found += [info.name for info in page.objects]
            if page.is_last or not page.objects or len(found) > len(_NEIGHBOURS):
                break
            last = found[-1]
        if found != [name for name in _NEIGHBOURS if name > after]:
            return f"the pages after {after!r} have {', '.join(found) or 'nothing'}"
    return ""


def _folders(folder: ObjectStorage) -> str:
    found = _with_neighbours(folder).list_folders()
    return "" if found == ["b", "bb"] else f"instead of b and bb: {', '.join(found) or 'nothing'}"


def _with_neighbours(folder: ObjectStorage) -> ObjectStorage:
    below = folder.child("order")
    for name in reversed(_NEIGHBOURS):
        below.put(name, name.encode())
    folder.put("order-by/d", b"")
    return below


def _names_outside(folder: ObjectStorage) -> str:
    below = folder.child("inside")
    for name in _OUTSIDE:
        with suppress(ValueError):
            below.put(name, b"")
            return f"an object could be put as {name!r}"
    return ""


def _delete(folder: ObjectStorage) -> str:
    folder.delete([_FIRST, "never/was"])
    try:
        folder.get(_FIRST)
    except ObjectNotFoundError:
        return "a deleted object was listed" if folder.list("a") else ""
    return "a deleted object could be read"


PROBES: Final[dict[str, Callable[[ObjectStorage], str]]] = {
    "a get gives back what was put": _put_and_get,
    "ranges can be read": _ranges,
    "a list after a put shows it": _list_after_put,
    "put-if-absent has one winner": _one_winner,
    "a get after a put finds it, whatever was asked before": _get_after_miss,
    "a range that ends past the object is an error": _range_past_the_end,
    "a list is sorted, and has nothing of neighbouring folders": _neighbours,
    "sizes are those of the objects, and times have a zone": _sizes_and_times,
    "pages have every object once, in order, after any name": _pages,
    "folders are those directly below": _folders,
    "names that leave the folder are refused with a ValueError": _names_outside,
    "a deleted object is gone": _delete,
}
"""Promise → its probe, which returns the problem that it saw."""
