"""Requests for several objects or operators: on a few threads where storage waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from forebay_state_api.threads import ReadThreads

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

T = TypeVar("T")
R = TypeVar("R")

_THREADS: Final = 8


def for_each(storage: ObjectStorage, items: Sequence[T], request: Callable[[T], R]) -> Sequence[R]:
    """Return the answer for each item, in order. Raises the error of the first that has one."""
    if len(items) < 2 or not storage.waits:  # noqa: PLR2004 - threads only cost then
        return [request(item) for item in items]
    with ReadThreads(min(_THREADS, len(items)), "forebay-observing") as pool:
        return list(pool.map(request, items))
