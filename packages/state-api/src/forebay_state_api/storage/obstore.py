"""Storage through obstore: local directories and process memory; `clouds` has the cloud stores."""

from __future__ import annotations

import builtins
import contextlib
import copy
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    JoinError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, MemoryStore

from forebay_state_api.contract.object_storage import (
    ObjectInfo,
    ObjectPage,
    ObjectStorage,
    checked_name,
    checked_prefix,
)
from forebay_state_api.contract.storage_fault import CREDENTIALS, NO_PERMISSION, StorageFault
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.storage.local_pages import EncodedNameError, page_of, walked

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore


_PLAIN: Final = re.compile(r"[\w./=-]+", re.ASCII)
"""Names that can be used as a file's path unchanged; obstore encodes others."""
_ERRNO: Final = re.compile(r"\(os error (\d+)\)")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CONFLICT: Final = "ConditionalRequestConflict"
"""S3's name for a collision of two conditional requests; either may be retried."""
PART_BYTES: Final = 16 << 20
"""Larger objects are written in parts, several at once. If one part fails, all are written again,
so the parts are large and few."""


class ObstoreStorage(ObjectStorage):
    """A store that obstore opens."""

    _is_remote: ClassVar[bool] = False
    """Whether errors without a number may come from the network."""

    def __init__(self, store: ObjectStore | None, url: str, prefix: str = "") -> None:
        """``prefix`` is the folder in ``store``, which is ``None`` until `_opened` opens it."""
        self._store = store
        self._prefix = prefix
        self.url = url

    def _opened(self, *, create: bool) -> ObjectStore | None:
        """Return the store; ``None`` if it does not exist yet and ``create`` is false."""
        del create
        return self._store

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        try:
            obstore.put(self._existing(), path, data, chunk_size=PART_BYTES)
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("write", name, error) from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        try:
            obstore.put(self._existing(), path, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            if self.fault(error).transient:
                raise self.failed("write", name, error) from error
            return False
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("write", name, error) from error
        return True

    def get(self, name: str) -> bytes:
        path = self._path(name)
        store = self._opened(create=False)
        if store is None:
            raise self.absent(name)
        try:
            return bytes(obstore.get(store, path).bytes())
        except FileNotFoundError as error:
            raise self.absent(name) from error
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("read", name, error) from error

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        path = self._path(name)
        store = self._opened(create=False)
        if store is None:
            raise self.absent(name)
        wanted = [(start, length) for start, length in ranges if length]
        try:
            found = iter(_ranges(store, path, wanted))
        except FileNotFoundError as error:
            raise self.absent(name) from error
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("read", name, error) from error
        answers = [next(found) if length else b"" for _, length in ranges]
        for (start, length), answer in zip(ranges, answers, strict=True):
            if len(answer) != length:
                fault = ValueError(f"bytes {start} to {start + length} reach beyond its end")
                raise self.failed("read", name, fault)
        return answers

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        folder = self._folder(prefix)
        store = self._opened(create=False)
        if store is None:
            return []
        try:
            found = [entry for page in obstore.list(store, folder) for entry in page]
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("list", prefix, error) from error
        return sorted(self._infos(found), key=lambda info: info.name)

    def _infos(self, found: Iterable[ObjectMeta]) -> builtins.list[ObjectInfo]:
        cut = len(self._prefix) + 1 if self._prefix else 0
        return [ObjectInfo(e["path"][cut:], e["size"], e["last_modified"]) for e in found]

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        folder = self._folder(prefix)
        store = self._opened(create=False)
        if store is None:
            return []
        try:
            answer = obstore.list_with_delimiter(store, folder)
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("list", prefix, error) from error
        return sorted(path.rpartition("/")[2] for path in answer["common_prefixes"])

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        store = self._opened(create=False)
        if store is None or not paths:
            return
        try:
            obstore.delete(store, paths)
        except FileNotFoundError:
            if len(paths) > 1:
                self._delete_singly(store, paths)
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("delete", ", ".join(paths[:3]), error) from error

    def child(self, prefix: str) -> Self:
        folder = checked_name(checked_prefix(prefix))
        below = copy.copy(self)
        below.url = f"{self.url.rstrip('/')}/{folder}"
        below._prefix = self._path(folder)  # noqa: SLF001 - one's own copy
        return below

    def fault(self, error: BaseException) -> StorageFault:
        """Find the error numbers in obstore's message; only they distinguish the causes."""
        text = str(error)
        number, status = (int(m[1]) if (m := p.search(text)) else None for p in (_ERRNO, _STATUS))
        transient = True if _CONFLICT in text else None
        if transient is number is status is None and isinstance(error, (GenericError, JoinError)):
            transient = self._is_remote
        denied = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
        advice = CREDENTIALS if self._is_remote else NO_PERMISSION
        return StorageFault.of(
            error,
            number=number,
            status=status,
            transient=transient,
            denied=advice if denied else "",
        )

    def _delete_singly(self, store: ObjectStore, paths: Iterable[str]) -> None:
        # One file was already deleted, which stops a bulk deletion of local files half-way.
        for path in paths:
            try:
                obstore.delete(store, path)
            except FileNotFoundError:  # already deleted
                continue
            except (BaseError, OSError, ValueError) as error:
                raise self.failed("delete", path, error) from error

    def _existing(self) -> ObjectStore:
        return cast("ObjectStore", self._opened(create=True))

    def _path(self, name: str) -> str:
        checked_name(name)
        return f"{self._prefix}/{name}" if self._prefix else name

    def _folder(self, prefix: str) -> str | None:
        folder = checked_prefix(prefix)
        return self._path(folder) if folder else self._prefix or None


def _ranges(store: ObjectStore, path: str, ranges: Sequence[tuple[int, int]]) -> Iterable[bytes]:
    if not ranges:
        return []
    starts, lengths = zip(*ranges, strict=True)
    try:
        # Callers merge adjacent ranges; merging across gaps would read unwanted bytes.
        found = obstore.get_ranges(store, path, starts=starts, lengths=lengths, coalesce=0)
        return [bytes(buffer) for buffer in found]
    except BaseException as error:
        # A start beyond the end makes obstore panic.
        if is_panic(error):
            raise ValueError(str(error)) from error
        raise


def is_panic(error: BaseException) -> bool:
    """Return whether obstore's Rust code panicked; such an error is not an `Exception`."""
    return type(error).__name__ == "PanicException"


def _refuse(url: str, options: Mapping[str, Any] | None) -> None:
    if options:
        names = ", ".join(sorted(options))
        raise ConfigurationError(f"storage at {url!r} takes no options, but was given {names}")


class MemoryStorage(ObstoreStorage):
    """Objects in this process's memory; everyone who opens the same URL sees the same objects."""

    contract_version: ClassVar[int] = 2
    schemes: ClassVar[tuple[str, ...]] = ("memory",)
    _stores: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """``url`` is ``memory://<name>[/<folder>]``; storages with one name share their objects."""
        _refuse(url, options)
        parts = urlsplit(url)
        store = self._stores.setdefault(parts.netloc, MemoryStore())
        super().__init__(store, url.rstrip("/"), parts.path.strip("/"))


_hint: Final = getattr(os, "posix_fadvise", None)
"""Announces the parts of a file to be read, so that a disk, or a server, gets all requests at once;
macOS has no such call."""


_VANISHING: Final = 100
"""How often a folder may vanish during one put; in practice it happens far less often."""


class LocalStorage(ObstoreStorage):
    """A local directory.

    Ranges are read, objects written and folders listed without obstore's threads, whose overhead
    exceeds the cost of a small file. If that fails, obstore repeats the request and reports the
    error. If the directory is a symbolic link, all requests go where it led when this was opened,
    as obstore's do.
    """

    contract_version: ClassVar[int] = 2
    schemes: ClassVar[tuple[str, ...]] = ("file",)
    waits = False

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """``url`` is an absolute path, as `located` returns it."""
        _refuse(url, options)
        self._root: Final = Path(url).resolve()
        if self._root.exists() and not self._root.is_dir():
            raise ConfigurationError(f"{url} is a file, not a directory for state")
        super().__init__(None, url)

    def _opened(self, *, create: bool) -> ObjectStore | None:
        if self._store is None and (create or self._root.is_dir()):
            try:
                self._store = LocalStore(self._root, mkdir=True, automatic_cleanup=True)
            except (BaseError, OSError) as error:
                fault = self.fault(error)
                raise StorageError(
                    f"the directory {self._root} does not exist and cannot be made: {fault.cause}. "
                    "Name one that the executors can make and write to (spark.forebay.state.dir, "
                    "or state_dir=)",
                    transient=fault.transient,
                ) from error
        return self._store

    def put(self, name: str, data: bytes) -> None:
        if not self._written(name, data, os.replace):
            super().put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            return self._written(name, data, os.link) or super().put_if_absent(name, data)
        except FileExistsError:
            return False

    def _written(self, name: str, data: bytes, publish: Callable[[Path, Path], None]) -> bool:
        """Write ``data`` to a temporary file and ``publish`` it; return whether that succeeded.

        Raises `FileExistsError` if ``publish`` does. Nothing is left behind in either case.
        """
        path = self._root / self._path(name)
        staged = path.with_name(f"{path.name}#{secrets.randbits(48)}")  # left out of listings
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
            file = os.open(f"{self._root}/{self._path(name)}", os.O_RDONLY)
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
        return super().get_ranges(name, ranges)  # raises the right error

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        folder = checked_prefix(prefix)
        try:
            return walked(self._plain_path(folder), f"{folder}/" if folder else "")
        except OSError:
            return super().list(prefix)

    def list_page(self, after: str = "") -> ObjectPage:
        try:
            return page_of(self._plain_path(""), after)
        except OSError:
            return super().list_page(after)

    def _plain_path(self, folder: str) -> str:
        """Return the path of a folder; raise `EncodedNameError` if obstore encodes its name."""
        below = "/".join(filter(None, (self._prefix, folder)))
        if below and not _PLAIN.fullmatch(below):
            raise EncodedNameError(below)
        return str(self._root / below)

    def failed(self, action: str, name: str, error: BaseException) -> StorageError:
        failure = super().failed(action, name, error)
        absent = f"(os error {errno.ENOENT})"
        if action == "write" and (isinstance(error, FileNotFoundError) or absent in str(error)):
            failure.transient = True  # a folder vanished during the put; a retry creates it again
        return failure


def _write_new(path: Path, data: bytes) -> bool:
    """Write a new file, creating its folders; return whether that succeeded."""
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
    """Create a file and its folders, repeatedly if a folder vanishes in the meantime.

    A process that deletes the last object of a folder also deletes the folder.
    """
    for _ in range(_VANISHING):
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb", buffering=0)
    raise FileNotFoundError(path)


def _remove(path: Path) -> None:
    # If it cannot be removed, it was never created, or listings leave it out.
    with contextlib.suppress(OSError):
        path.unlink()
