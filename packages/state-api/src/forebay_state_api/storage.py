"""Object storage: the few operations that versions and backends need, and who provides them.

The contract that the protocol rests on (checked by ``forebay doctor``): a put is all-or-nothing, a
list after a put shows it, put-if-absent lets exactly one caller win. All methods block, and all
may be called from several threads at once.
"""

from __future__ import annotations

import abc
import builtins
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore, from_url

from forebay_state_api.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from datetime import datetime

    from obstore.store import ObjectStore

_CLOUD_SCHEMES = frozenset(
    {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"}
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")
"""How a URL begins; one letter is a Windows drive."""


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
    reports becomes a `StorageError` that names the object.
    """

    url: str
    """Where the folder is, for messages; for a local directory its absolute path."""

    @abc.abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all; a list that begins later shows it."""

    @abc.abstractmethod
    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write an object that does not exist yet; ``False`` when it exists.

        Of several callers at once exactly one gets ``True``.
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class _Opener(Protocol):
    def __call__(self, *, create: bool) -> ObjectStore | None: ...


@attrs.frozen
class _Opened:
    """Opens a store that needs no making."""

    store: ObjectStore

    def __call__(self, *, create: bool) -> ObjectStore:
        del create
        return self.store


class ObstoreStorage(ObjectStorage):
    """Local directories, process memory, S3, GCS and Azure, through obstore."""

    def __init__(self, opener: _Opener, url: str, prefix: str = "") -> None:
        """``opener`` gives the store, or ``None`` where it does not exist yet."""
        self._opener = opener
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
            obstore.put(self._existing(), path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
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
        return ObstoreStorage(self._opener, f"{self.url.rstrip('/')}/{folder}", self._path(folder))

    def _delete_singly(self, store: ObjectStore, paths: Iterable[str]) -> None:
        # One name was gone already, which ends a bulk deletion of local files half-way.
        for path in paths:
            try:
                obstore.delete(store, path)
            except FileNotFoundError:
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
        cause = str(error).partition("\n\nDebug source")[0]
        return StorageError(f"could not {action} {name!r} in {self.url}: {cause}")

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
        # A start beyond the end makes obstore panic, and its exception is not an Exception.
        if type(error).__name__ == "PanicException":
            raise ValueError(str(error)) from error
        raise


class MemoryStorage(ObstoreStorage):
    """Objects in this process's memory; everyone who opens the same URL sees the same objects."""

    _stores: dict[str, MemoryStore] = {}  # noqa: RUF012 - shared by all instances on purpose

    def __init__(self, url: str) -> None:
        """``memory://<name>[/<folder>]``; storages of one name share their objects."""
        parts = urlsplit(url)
        store = self._stores.setdefault(parts.netloc, MemoryStore())
        super().__init__(_Opened(store), url.rstrip("/"), parts.path.strip("/"))


class _LocalDirectory:
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
            cause = str(error).partition("\n\nDebug source")[0]
            msg = f"the directory {self._path} does not exist and cannot be made: {cause}"
            raise StorageError(msg) from error


def open_storage(url: str | Path, options: Mapping[str, Any] | None = None) -> ObjectStorage:
    """Open a directory or URL; nothing is created or checked before the first operation.

    A path may begin with ``~`` and may be relative to the working directory. ``options`` go to
    the cloud store (``aws_region`` and so on) or to the plugin that serves the scheme.
    """
    text = located(str(url))
    scheme = _scheme_of(text)
    if scheme in _CLOUD_SCHEMES:
        return _open_cloud(text, options or {})
    if scheme not in {"", "memory"}:
        return _open_plugin(scheme, text, options or {})
    if options:
        names = ", ".join(sorted(options))
        msg = f"storage at {text!r} takes no options, but was given {names}"
        raise ConfigurationError(msg)
    return MemoryStorage(text) if scheme == "memory" else _open_local(Path(text))


def located(text: str) -> str:
    """Return an absolute path for a path or a ``file:`` URL, and any other URL as it is.

    Raises `ConfigurationError` for what is only nearly a URL, of which a part would be ignored or
    which would be taken for a path, and for a URL that has a password in it.
    """
    if not text:
        msg = "the state directory is an empty string; name a directory or a URL"
        raise ConfigurationError(msg)
    scheme = _scheme_of(text)
    if scheme == "file":
        text = _path_of(text)
    elif scheme:
        _check_url(text, scheme)
        return text
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError as error:
        msg = f"the state directory {text!r} cannot be found: {error}"
        raise ConfigurationError(msg) from error


def _scheme_of(text: str) -> str:
    """In lower case; ``""`` of a path."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else ""


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        msg = (
            f"{url!r} is no URL of a local directory: write file:///absolute/path, with %23 for # "
            "and %3F for ?, or the path itself"
        )
        raise ConfigurationError(msg)
    return url2pathname(parts.path)


def _check_url(url: str, scheme: str) -> None:
    if not url[len(scheme) :].startswith("://"):
        msg = (
            f"{url!r} is neither a path nor a URL: URLs begin with {scheme}:// (a Path object "
            "drops one of the slashes: pass a str), and a directory of that name is "
            f"{'./' + url!r}"
        )
        raise ConfigurationError(msg)
    parts = urlsplit(url)
    if parts.password is not None:
        msg = (
            f"the URL of the storage at {parts.hostname} has a password in it, which would show "
            "in messages: set spark.forebay.storage.* instead"
        )
        raise ConfigurationError(msg)


def _open_local(path: Path) -> ObstoreStorage:
    if path.exists() and not path.is_dir():
        msg = f"{path} is a file, not a directory for state"
        raise ConfigurationError(msg)
    return ObstoreStorage(_LocalDirectory(path), str(path))


def _open_cloud(url: str, options: Mapping[str, Any]) -> ObstoreStorage:
    try:
        store = from_url(url, config=cast("Any", dict(options) or None))
    except (BaseError, ValueError) as error:
        cause = str(error).partition("\n\nDebug source")[0]
        msg = f"storage at {url!r} cannot be opened: {cause}"
        raise ConfigurationError(msg) from error
    return ObstoreStorage(_Opened(store), url.rstrip("/"))


def _open_plugin(scheme: str, url: str, options: Mapping[str, Any]) -> ObjectStorage:
    # Imported here: only a foreign scheme needs plugins.
    from forebay_state_api.plugins import plugins

    opener: Callable[[str, Mapping[str, Any]], ObjectStorage] = plugins().storage(scheme)
    return opener(url, options)
