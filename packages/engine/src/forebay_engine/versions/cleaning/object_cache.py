"""A bounded memory of the immutable objects that passes of one process have read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay_state_api.threads import ReadThreads

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

T = TypeVar("T")

MOST_NAMES: Final = 50_000
"""The most names of files that are remembered of one operator, some 10 MB."""
_THREADS: Final = 8


class ObjectCache:
    """A cache from an object's name to its content, which keeps the most recently used objects.

    Not thread-safe: one pass at a time uses it, and its reads side by side only read.
    """

    def __init__(self, most_names: int = MOST_NAMES) -> None:
        """``most_names`` bounds the sum of the sizes of what is remembered."""
        self._most: Final = most_names
        self._size = 0
        self._known: OrderedDict[str, Any] = OrderedDict()

    def read(
        self,
        storage: ObjectStorage,
        names: Iterable[str],
        read: Callable[[ObjectStorage, str], T],
        done: Callable[[], object] = lambda: None,
    ) -> Sequence[T]:
        """Return ``read(storage, name)`` for each object, one request for each not remembered.

        Uses several threads if requests to the storage wait. ``done`` is called for each object.
        Raises the error of the first that has one.
        """
        wanted = list(names)
        found: dict[str, T] = {}
        for name in wanted:
            if name in self._known:
                self._known.move_to_end(name)
                found[name] = self._known[name]
                done()
        missing = list(dict.fromkeys(name for name in wanted if name not in found))
        for name, content in zip(missing, _each(storage, missing, read), strict=True):
            found[name] = content
            self._keep(name, content)
            done()
        return [found[name] for name in wanted]

    def _keep(self, name: str, content: object) -> None:
        self._known[name] = content
        self._size += _size(content)
        while self._size > self._most:
            _, oldest = self._known.popitem(last=False)
            self._size -= _size(oldest)


def _size(content: object) -> int:
    return 1 + (len(content) if isinstance(content, Sized) else 0)


def _each(
    storage: ObjectStorage, names: Sequence[str], read: Callable[[ObjectStorage, str], T]
) -> Iterable[T]:
    if len(names) < 2 or not storage.waits:  # noqa: PLR2004 - threads only cost then
        for name in names:
            yield read(storage, name)
        return
    with ReadThreads(min(_THREADS, len(names)), "forebay-janitor-reads") as pool:
        yield from pool.map(lambda name: read(storage, name), names)
