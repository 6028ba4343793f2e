"""Storage through obstore: local directories, process memory, S3, GCS and Azure."""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import urlsplit

import attrs
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore

from forebay_state_api._storage.contract import (
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStorage,
    checked_name,
    checked_prefix,
)
from forebay_state_api._storage.faults import cause_of, is_absent, is_panic, is_passing
from forebay_state_api.errors import StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_PLAIN: Final = re.compile(r"[\w./=-]+", re.ASCII)
"""Names that are a file's path as they are; obstore has an encoding for others."""


class Opener(Protocol):
    """Gives the store, or ``None`` where it does not exist yet and is not to be made."""

    def __call__(self, *, create: bool) -> ObjectStore | None: ...


@attrs.frozen
class Opened:
    """Opens a store that needs no making."""

    store: ObjectStore

    def __call__(self, *, create: bool) -> ObjectStore:
        del create
        return self.store


class Deferred:
    """Opens a store when it is first asked for."""

    def __init__(self, make: Callable[[], ObjectStore]) -> None:
        """``make`` may be called by several threads at once; they may get stores of their own."""
        self._make = make
        self._store: ObjectStore | None = None

    def __call__(self, *, create: bool) -> ObjectStore:
        del create
        if self._store is None:
            self._store = self._make()
        return self._store


class ObstoreStorage(ObjectStorage):
    """Local directories, process memory, S3, GCS and Azure, through obstore."""

    def __init__(
        self, opener: Opener, url: str, prefix: str = "", *, once: Opener | None = None
    ) -> None:
        """``opener`` gives the store, or ``None`` where it does not exist yet.

        ``once`` gives one that sends each request only once, where ``opener``'s does not.
        """
        self._opener = opener
        self._once = once or opener
        self._prefix = prefix
        self.url = url

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        try:
            obstore.put(self._existing(), path, data)
        except (BaseError, OSError, ValueError) as error:
            raise self._failed("write", name, error) from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        try:
            store = cast("ObjectStore", self._once(create=True))
            obstore.put(store, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            if is_passing(error):
                raise self._failed("write", name, error) from error
            return False
        except (BaseError, OSError, ValueError) as error:
            raise self._failed("write", name, error) from error
        return True

    def get(self, name: str) -> bytes:
        path = self._path(name)
        store = self._opener(create=False)
        if store is None:
            raise self._absent(name)
        try:
            return bytes(obstore.get(store, path).bytes())
        except FileNotFoundError as error:
            raise self._absent(name) from error
        except (BaseError, OSError, ValueError) as error:
            raise self._failed("read", name, error) from error

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        path = self._path(name)
        store = self._opener(create=False)
        if store is None:
            raise self._absent(name)
        wanted = [(start, length) for start, length in ranges if length]
        try:
            found = iter(_ranges(store, path, wanted))
        except FileNotFoundError as error:
            raise self._absent(name) from error
        except (BaseError, OSError, ValueError) as error:
            raise self._failed("read", name, error) from error
        answers = [next(found) if length else b"" for _, length in ranges]
        for (start, length), answer in zip(ranges, answers, strict=True):
            if len(answer) != length:
                message = f"bytes {start} to {start + length} reach beyond its end"
                raise self._failed("read", name, ValueError(message))
        return answers

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        folder = self._folder(prefix)
        store = self._opener(create=False)
        if store is None:
            return []
        cut = len(self._prefix) + 1 if self._prefix else 0
        try:
            found = [entry for page in obstore.list(store, folder) for entry in page]
        except (BaseError, OSError, ValueError) as error:
            raise self._failed("list", prefix, error) from error
        infos = (ObjectInfo(e["path"][cut:], e["size"], e["last_modified"]) for e in found)
        return sorted(infos, key=lambda info: info.name)

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        folder = self._folder(prefix)
        store = self._opener(create=False)
        if store is None:
            return []
        try:
            answer = obstore.list_with_delimiter(store, folder)
        except (BaseError, OSError, ValueError) as error:
            raise self._failed("list", prefix, error) from error
        return sorted(path.rpartition("/")[2] for path in answer["common_prefixes"])

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        store = self._opener(create=False)
        if store is None or not paths:
            return
        try:
            obstore.delete(store, paths)
        except FileNotFoundError:
            self._delete_singly(store, paths)
        except (BaseError, OSError, ValueError) as error:
            raise self._failed("delete", ", ".join(paths[:3]), error) from error

    def child(self, prefix: str) -> ObstoreStorage:
        folder = checked_name(checked_prefix(prefix))
        url = f"{self.url.rstrip('/')}/{folder}"
        return ObstoreStorage(self._opener, url, self._path(folder), once=self._once)

    def _delete_singly(self, store: ObjectStore, paths: Iterable[str]) -> None:
        # One name was gone already, which ends a bulk deletion of local files half-way.
        for path in paths:
            try:
                obstore.delete(store, path)
            except FileNotFoundError:  # gone already
                continue
            except (BaseError, OSError, ValueError) as error:
                raise self._failed("delete", path, error) from error

    def _existing(self) -> ObjectStore:
        return cast("ObjectStore", self._opener(create=True))

    def _path(self, name: str) -> str:
        checked_name(name)
        return f"{self._prefix}/{name}" if self._prefix else name

    def _folder(self, prefix: str) -> str | None:
        folder = checked_prefix(prefix)
        return self._path(folder) if folder else self._prefix or None

    def _failed(self, action: str, name: str, error: Exception) -> StorageError:
        message = f"could not {action} {name!r} in {self.url}: {cause_of(error)}"
        return StorageError(message, transient=is_passing(error))

    def _absent(self, name: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(f"there is no object {name!r} in {self.url}")


def _ranges(store: ObjectStore, path: str, ranges: Sequence[tuple[int, int]]) -> Iterable[bytes]:
    if not ranges:
        return []
    starts, lengths = zip(*ranges, strict=True)
    try:
        # Callers join neighbours themselves; joining over gaps would read what nobody wants.
        found = obstore.get_ranges(store, path, starts=starts, lengths=lengths, coalesce=0)
        return [bytes(buffer) for buffer in found]
    except BaseException as error:
        # A start beyond the end makes obstore panic.
        if is_panic(error):
            raise ValueError(str(error)) from error
        raise


class MemoryStorage(ObstoreStorage):
    """Objects in this process's memory; everyone who opens the same URL sees the same objects."""

    _stores: dict[str, MemoryStore] = {}  # noqa: RUF012 - shared by all instances on purpose

    def __init__(self, url: str) -> None:
        """``memory://<name>[/<folder>]``; storages of one name share their objects."""
        parts = urlsplit(url)
        store = self._stores.setdefault(parts.netloc, MemoryStore())
        super().__init__(Opened(store), url.rstrip("/"), parts.path.strip("/"))


_hint: Final = getattr(os, "posix_fadvise", None)
"""Tells the system which parts of a file to fetch, so that a disk, or a server, gets all requests
at once; macOS has no such call."""


_VANISHING: Final = 100
"""How often a folder may vanish under one put; far more often than it does."""


class LocalStorage(ObstoreStorage):
    """A local directory.

    Ranges are read, and objects written, without a detour through obstore's threads, which takes
    longer than a small file does. Whatever goes wrong is left to obstore, which tells what it is.
    """

    waits = False

    def __init__(self, root: Path, opener: Opener, prefix: str = "") -> None:
        """``opener`` opens ``root``; the storage is its folder ``prefix``."""
        super().__init__(opener, str(root / prefix), prefix)
        self._root = root
        self._folder_path = f"{root / prefix}/"

    def put(self, name: str, data: bytes) -> None:
        if not self._written(name, data, os.replace):
            super().put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            return self._written(name, data, os.link) or super().put_if_absent(name, data)
        except FileExistsError:
            return False

    def _written(self, name: str, data: bytes, publish: Callable[[Path, Path], None]) -> bool:
        """Write ``data`` beside its place, then ``publish`` it there; whether that went well.

        Raises `FileExistsError` if ``publish`` does. Nothing is left behind in either case.
        """
        path = self._root / self._path(name)
        staged = path.with_name(f"{path.name}#{secrets.randbits(48)}")  # which lists leave out
        if not _PLAIN.fullmatch(name) or not _write_new(staged, data):
            return False
        try:
            publish(staged, path)
        except FileExistsError:
            raise
        except OSError:
            return False
        finally:
            _remove(staged)
        return True

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        try:
            file = os.open(self._folder_path + checked_name(name), os.O_RDONLY)
        except OSError:
            return super().get_ranges(name, ranges)
        try:
            if len(ranges) > 1 and _hint is not None:
                for start, length in ranges:
                    _hint(file, start, length, os.POSIX_FADV_WILLNEED)
            answers = [os.pread(file, length, start) for start, length in ranges]
        except (OSError, OverflowError):
            return super().get_ranges(name, ranges)
        finally:
            os.close(file)
        if all(len(found) == n for found, (_, n) in zip(answers, ranges, strict=True)):
            return answers
        return super().get_ranges(name, ranges)  # which says what is wrong

    def child(self, prefix: str) -> LocalStorage:
        folder = checked_name(checked_prefix(prefix))
        return LocalStorage(self._root, self._opener, self._path(folder))

    def _failed(self, action: str, name: str, error: Exception) -> StorageError:
        failure = super()._failed(action, name, error)
        if action == "write" and is_absent(error):
            failure.transient = True  # a folder vanished under the put; the next try makes it again
        return failure


def _write_new(path: Path, data: bytes) -> bool:
    """Write a new file, and the folders that it lies in; whether that went well."""
    left = memoryview(data)
    try:
        with _created(path) as file:
            while left:
                left = left[file.write(left) :]
    except OSError:
        _remove(path)
        return False
    return True


def _created(path: Path) -> FileIO:
    """Create a file, and the folders that it lies in, until none vanishes meanwhile.

    Whoever deletes the last object of a folder deletes the folder too.
    """
    for _ in range(_VANISHING):
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb", buffering=0)
    raise FileNotFoundError(path)


def _remove(path: Path) -> None:
    # What cannot be removed was not made, or is left out of lists.
    with contextlib.suppress(OSError):
        path.unlink()


class LocalDirectory:
    """Opens a local directory, which is made when the first object is written to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: LocalStore | None = None

    def __call__(self, *, create: bool) -> LocalStore | None:
        if self._store is None and (create or self._path.is_dir()):
            self._store = self._open()
        return self._store

    def _open(self) -> LocalStore:
        try:
            return LocalStore(self._path, mkdir=True, automatic_cleanup=True)
        except (BaseError, OSError) as error:
            cause = cause_of(error)
            msg = (
                f"the directory {self._path} does not exist and cannot be made: {cause}. Name one "
                "that the executors can make and write to (spark.forebay.state.dir, or state_dir=)"
            )
            raise StorageError(msg, transient=is_passing(error)) from error
