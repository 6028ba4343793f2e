"""Marks of clearing: below which version the janitor may have deleted markers and manifests.

Before a pass deletes any of them it puts ``cleared/<version>-<retention>-<min age in s>``, whose
version is above all that it deletes. So everything that was ever put at or above the highest mark
is stored, whatever crashed. The mark below the highest stays as well: a listing of a directory that
misses an object put meanwhile still shows a mark that was valid when the listing began.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

import attrs

from forebay_engine.versions.format import layout
from forebay_state_api.contract.checksummed import seal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage

_NAME: Final = re.compile(rf"{layout.CLEARED}/(\d+)-(\d+)-(\d+)")
_KEPT: Final = 2


@attrs.frozen(kw_only=True)
class ClearingMark:
    """One mark, as a listing shows it."""

    version: int
    """Objects of versions below it may have been deleted."""
    retention: int
    """The retention setting of the janitor that put the mark."""
    min_age: timedelta
    """The minimum age of files in that janitor's settings."""
    modified: datetime
    name: str

    @classmethod
    def parse(cls, info: ObjectInfo) -> Self | None:
        """Read an object's name; ``None`` if it is not a name of the history."""
        match = _NAME.fullmatch(info.name)
        return match and cls(
            version=int(match[1]),
            retention=int(match[2]),
            min_age=timedelta(seconds=int(match[3])),
            modified=info.modified,
            name=info.name,
        )


def marks_among(objects: Iterable[ObjectInfo]) -> Sequence[ClearingMark]:
    """Return the marks among listed objects, the highest first."""
    found = [mark for info in objects if (mark := ClearingMark.parse(info)) is not None]
    return sorted(found, key=lambda mark: (mark.version, mark.modified, mark.name), reverse=True)


def cleared_below(storage: ObjectStorage) -> int:
    """Return the version of the highest mark; 0 while there is none (one request).

    If it is called after a listing of the versions, everything that was put at or above it before
    that listing is in the listing.
    """
    return max((mark.version for mark in marks_among(storage.list(layout.CLEARED))), default=0)


def put_mark(storage: ObjectStorage, version: int, retention: int, min_age: timedelta) -> None:
    """Put a mark at ``version``, and delete those that two higher ones make needless."""
    name = f"{layout.CLEARED}/{version}-{retention}-{int(min_age.total_seconds())}"
    storage.put_if_absent(name, seal({"below": version}))
    needless = marks_among(storage.list(layout.CLEARED))[_KEPT:]
    storage.delete([mark.name for mark in needless])
