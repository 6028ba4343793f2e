"""The contract of object storages: the few operations that versions and backends need."""

from __future__ import annotations

import abc
import builtins
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from forebay_state_api.contract.storage_fault import StorageFault
from forebay_state_api.errors import StorageError

if TYPE_CHECKING:
    from datetime import datetime

__all__ = [
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectPage",
    "ObjectStorage",
    "checked_name",
    "checked_prefix",
]


class ObjectNotFoundError(StorageError):
    """The object does not exist.

    Operator action: it was deleted by hand, or belongs to a version that the janitor has deleted;
    restore it from a copy, or open another version.
    """


@attrs.frozen
class ObjectInfo:
    """One object in a listing."""

    name: str
    """The object's name relative to the listed storage, with ``/`` between folders."""
    size: int
    """The size in bytes."""
    modified: datetime
    """The time of the last write by the store's clock, as an aware datetime."""


@attrs.frozen
class ObjectPage:
    """Objects that follow each other by name: a part of a listing."""

    objects: Sequence[ObjectInfo]
    is_last: bool
    """Whether no object comes after them."""


def checked_name(name: str) -> str:
    """Return ``name`` if it names an object below the root; `ValueError` otherwise."""
    parts = name.split("/")
    if not name or "\x00" in name or "\\" in name or any(p in {"", ".", ".."} for p in parts):
        raise ValueError(
            f"{name!r} is not a name below the storage's root: no '..', no '//', no leading '/'"
        )
    return name


def checked_prefix(prefix: str) -> str:
    """Return ``prefix`` without a trailing slash; ``""`` is the root."""
    folder = prefix.rstrip("/") if prefix != "/" else prefix
    return checked_name(folder) if folder else ""


class ObjectStorage(abc.ABC):
    """A folder of objects. Names are relative, separated by ``/``, and never leave the folder.

    A name that would (``..``, absolute, empty parts) is a `ValueError`. Errors of the store become
    a `StorageError` that names the object: see `failed` and `absent`.

    A plugin's class is called with a URL, which has one of its ``schemes``, and a mapping of the
    settings ``spark.forebay.storage.*`` without that prefix. It raises `ConfigurationError` for
    unknown settings, and does not contact the store before the first request.
    """

    url: str
    """The folder's location; for a local directory its absolute path."""
    options: Mapping[str, Any] = MappingProxyType({})
    """The settings ``spark.forebay.storage.*`` with which `open_storage` opened it, for an engine
    that opens the same place with a client of its own. They hold credentials: never show them."""
    waits: bool = True
    """Whether requests wait for something outside this machine, so that several threads with one
    request each are faster than one thread with all of them."""

    @abc.abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write an object, completely or not at all; a list that begins later shows it."""

    @abc.abstractmethod
    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists; return ``False`` if it does.

        Of several concurrent callers exactly one gets ``True``, provided that each writes different
        bytes (for example with a random id): if a response is lost, an object with the caller's
        bytes counts as the caller's. A caller that gets a `StorageError` may still have written the
        object.
        """

    @abc.abstractmethod
    def get(self, name: str) -> bytes:
        """Return the content; raise `ObjectNotFoundError` if there is no such object."""

    @abc.abstractmethod
    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Return the bytes of ``(start, length)`` ranges, in order, requesting many at once.

        A range that ends beyond the object is a `StorageError`.
        """

    @abc.abstractmethod
    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        """Return all objects below the folder ``prefix``, at any depth, sorted by name."""

    def list_page(self, after: str = "") -> ObjectPage:
        """Return the objects whose names come after ``after``, as many as one request returns.

        They are sorted by name and begin with the first; ``after`` need not exist. Override it if
        the store can begin a list in the middle; this one lists everything.
        """
        found = [info for info in self.list() if info.name > after]
        return ObjectPage(found, is_last=True)

    @abc.abstractmethod
    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        """Return the names (last part only) of the folders directly below ``prefix``, sorted."""

    @abc.abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, ignoring those that do not exist. Not atomic for several names."""

    @abc.abstractmethod
    def child(self, prefix: str) -> ObjectStorage:
        """Return the storage of a folder below this one; nothing is created."""

    def fault(self, error: BaseException) -> StorageFault:
        """Classify an error of the store; override it if the store's errors need special care."""
        return StorageFault.of(error)

    def failed(self, action: str, name: str, error: BaseException) -> StorageError:
        """Return the exception for a store's error: action, name, URL, cause and advice."""
        fault = self.fault(error)
        message = f"could not {action} {name!r} in {self.url}: {fault.cause}"
        return StorageError(message, transient=fault.transient)

    def absent(self, name: str) -> ObjectNotFoundError:
        """Return the exception for an object that does not exist."""
        return ObjectNotFoundError(f"there is no object {name!r} in {self.url}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
