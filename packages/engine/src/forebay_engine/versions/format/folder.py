"""An operator's folder, through which files of other operators can also be read.

An operator stores objects below its own folder. State that was restored from another operator
consists, at first, of the other operator's files: a manifest names them ``from/<folder>/data/…``,
relative to the state directory that contains both. Such names are read-only; a backend, a compactor
and a cache treat them like any other name.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.format import layout
from forebay_state_api.contract.file_names import DATA
from forebay_state_api.storage import ForwardingStorage

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage

FOREIGN: Final = "from/"
"""Prefix of the name of another operator's file."""
_PARTS: Final = 2
"""Parts of an operator's folder: query and uid."""


class OperatorStorage(ForwardingStorage):
    """The storage of one operator's folder below a state directory."""

    def __init__(self, root: ObjectStorage, folder: str) -> None:
        """``root`` is the state directory, ``folder`` the result of `layout.operator_folder`."""
        super().__init__(root.child(folder))
        self.root: Final = root
        self.folder: Final = folder

    def sibling(self, folder: str) -> OperatorStorage:
        """Return the folder of another operator in the same state directory."""
        return self if folder == self.folder else OperatorStorage(self.root, folder)

    def get(self, name: str) -> bytes:
        storage, below = self._located(name)
        return storage.get(below)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        storage, below = self._located(name)
        return storage.get_ranges(below, ranges)

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        storage, below = self._located(prefix)
        if storage is self.inner:
            return storage.list(below)
        return [attrs.evolve(info, name=f"{FOREIGN}{info.name}") for info in storage.list(below)]

    def child(self, prefix: str) -> ObjectStorage:
        return self.inner.child(prefix)

    def _located(self, name: str) -> tuple[ObjectStorage, str]:
        """Return the storage that holds ``name``, and its name there."""
        if name.startswith(FOREIGN):
            return self.root, name[len(FOREIGN) :]
        return self.inner, name


def uid_of(storage: ObjectStorage) -> str:
    """Return the uid of the operator whose folder a storage is, for messages."""
    if not isinstance(storage, OperatorStorage):
        return storage.url.rpartition("/")[2]
    return layout.unescaped(storage.folder.rpartition("/")[2])


def split(name: str, own: str) -> tuple[str, str]:
    """Return the operator's folder that contains a file, and the file's name there.

    ``own`` is the folder whose manifest names the file.
    """
    if not name.startswith(FOREIGN):
        return own, name
    parts = name[len(FOREIGN) :].split("/")
    return "/".join(parts[:_PARTS]), "/".join(parts[_PARTS:])


def renamed(name: str, *, named_by: str, reader: str) -> str:
    """Return ``reader``'s name for the file that ``named_by`` calls ``name``; both are folders."""
    folder, below = split(name, named_by)
    return below if folder == reader else f"{FOREIGN}{folder}/{below}"


def data_folder(name: str) -> str:
    """Return the folder to list to find ``name`` and the files next to it."""
    if not name.startswith(FOREIGN):
        return DATA
    folder, _ = split(name, "")
    return f"{FOREIGN}{folder}/{DATA}"
