"""Pages of a local directory's listing: a page walks only the folders whose names it holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from forebay_state_api.contract.object_storage import ObjectInfo, ObjectPage

PAGE: Final = 1_000
"""Names of a page."""
_PLAIN: Final = re.compile(r"[\w.=-]*", re.ASCII)
"""Characters of names that a file system holds unchanged."""
_STAGED: Final = re.compile(r".+#\d+", re.ASCII)
"""Files that are being written, which listings leave out."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class EncodedNameError(OSError):
    """A file's name is not the object's name."""


def page_of(folder: str, after: str, most: int = PAGE) -> ObjectPage:
    """Return at most ``most`` files below a folder, by name, from the first after ``after``.

    Raises `EncodedNameError` for a name that is encoded, and `OSError`.
    """
    found = [*islice(_walked(folder, "", after), most + 1)]
    return ObjectPage(found[:most], is_last=len(found) <= most)


def walked(folder: str, prefix: str) -> list[ObjectInfo]:
    """Return all files below a folder, by name, which begins with ``prefix``. Raises as above."""
    return [*_walked(folder, prefix, "")]


def _walked(path: str, above: str, after: str) -> Iterator[ObjectInfo]:
    for name in _entries(path):
        full = above + name
        if name.endswith("/"):
            if full > after or after.startswith(full):
                yield from _walked(f"{path}/{name[:-1]}", full, after)
        elif full > after:
            try:
                state = os.stat(f"{path}/{name}")  # noqa: PTH116 - paths of thousands of files
            except FileNotFoundError:  # deleted meanwhile
                continue
            modified = _EPOCH + timedelta(microseconds=state.st_mtime_ns // 1_000)
            yield ObjectInfo(full, state.st_size, modified)


def _entries(path: str) -> list[str]:
    """Return a directory's names in the order of the objects below; folders end in ``/``."""
    try:
        with os.scandir(path) as found:
            names = [f"{one.name}/" if one.is_dir() else one.name for one in found]
    except FileNotFoundError:  # deleted meanwhile
        return []
    if any("#" in name for name in names):
        names = [name for name in names if not _STAGED.fullmatch(name)]
    if not _PLAIN.fullmatch("".join(names).replace("/", "")):
        raise EncodedNameError(path)
    return sorted(names)
