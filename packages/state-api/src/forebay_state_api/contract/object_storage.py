"""What every object storage does: the few operations that versions and backends need."""

from __future__ import annotations

import abc
import builtins
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_state_api.contract.storage_fault import StorageFault
from forebay_state_api.errors import StorageError

if TYPE_CHECKING:
    from datetime import datetime


class ObjectNotFoundError(StorageError):
    """The object does not exist.

    Operator action: it was deleted by hand, or belongs to a version that the janitor has cleared.
    """


@attrs.frozen
class ObjectInfo:
    """One object in a listing."""

    name: str
    """Relative to the storage that was listed, with ``/`` between folders."""
    size: int
    """Bytes."""
    modified: datetime
    """By the store's own clock, aware."""


def checked_name(name: str) -> str:
    """Return ``name`` if it names an object below the root; `ValueError` otherwise."""
    parts = name.split("/")
    if not name or "\x00" in name or "\\" in name or any(p in {"", ".", ".."} for p in parts):
        msg = f"{name!r} is not a name below the storage's root: no '..', no '//', no leading '/'"
        raise ValueError(msg)
    return name


def checked_prefix(prefix: str) -> str:
    """Return ``prefix`` without a trailing slash; ``""`` is the root itself."""
    folder = prefix.rstrip("/") if prefix != "/" else prefix
    return checked_name(folder) if folder else ""


class ObjectStorage(abc.ABC):
    """A folder of objects. Names are relative, separated by ``/``, and never leave the folder.

    A name that would (``..``, absolute, empty parts) is a `ValueError`; whatever storage itself
    reports becomes a `StorageError` that names the object: see `failed` and `absent`.

    A class that a plugin gives is called with the URL, of one of its ``schemes``, and the settings
    ``spark.forebay.storage.*`` by what they have for the ``*``; it raises `ConfigurationError` for
    those that mean nothing to it, and asks the store nothing before the first request.
    """

    url: str
    """Where the folder is, for messages; for a local directory its absolute path."""
    waits: bool = True
    """Whether a request waits for something that lies outside this machine, so that several threads
    with a request each are quicker than one thread with all of them."""

    @abc.abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all; a list that begins later shows it."""

    @abc.abstractmethod
    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write an object that does not exist yet; ``False`` when it exists.

        Of several callers at once exactly one gets ``True``, if each writes bytes of its own (with
        a random id in them, say): where an answer is lost, an object with the caller's bytes counts
        as the caller's. A caller that gets a `StorageError` may have written the object.
        """

    @abc.abstractmethod
    def get(self, name: str) -> bytes:
        """Return the content; `ObjectNotFoundError` when there is no such object."""

    @abc.abstractmethod
    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Return ``(start, length)`` ranges in order, many in flight.

        A range that ends beyond the object is a `StorageError`.
        """

    @abc.abstractmethod
    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        """All objects below the folder ``prefix``, at any depth, sorted by name."""

    @abc.abstractmethod
    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        """Names (last part only) of the folders directly below ``prefix``, sorted."""

    @abc.abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; one that does not exist is no error. Not atomic over several names."""

    @abc.abstractmethod
    def child(self, prefix: str) -> ObjectStorage:
        """The storage of a folder below this one; nothing is created."""

    def fault(self, error: BaseException) -> StorageFault:
        """What an error of the store means; overridden where its errors say it in their own way."""
        return StorageFault.of(error)

    def failed(self, action: str, name: str, error: BaseException) -> StorageError:
        """Return what to raise from an error of the store: what failed, where, why, what helps."""
        fault = self.fault(error)
        message = f"could not {action} {name!r} in {self.url}: {fault.cause}"
        return StorageError(message, transient=fault.passing)

    def absent(self, name: str) -> ObjectNotFoundError:
        """Return what to raise for an object that does not exist."""
        return ObjectNotFoundError(f"there is no object {name!r} in {self.url}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
