"""Storage through fsspec, for file systems that obstore does not open: HDFS, WebHDFS and DBFS.

A put writes to a temporary file and renames it, so that nobody sees half an object. Names that
begin with a dot and end in ``.aside`` or ``.claim`` belong to this adapter and are left out of
listings. Put-if-absent relies on an operation that succeeds for one caller only: renaming a file
without replacing another; or, on HDFS, renaming a directory, which moves it into the target
directory if that exists. ``forebay doctor`` probes it.
"""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from forebay_state_api.contract.object_storage import (
    ObjectInfo,
    ObjectStorage,
    checked_name,
    checked_prefix,
)
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_ASIDE: Final = ".aside"
_CLAIM: Final = ".claim"
_SILENT: Final = frozenset({"webhdfs"})
"""File systems that do not rename a file over another one, and raise no error."""
_REPLACING: Final = frozenset({"hdfs", "arrow_hdfs"})
"""File systems on which the target must be deleted before a rename can replace it."""
_TIMES: Final = ("mtime", "modificationTime", "last_modified", "LastModified", "updated", "created")
_UNKNOWN_TIME: Final = datetime.max.replace(tzinfo=UTC)
"""Used where a file system reports no times: to the janitor everything is young, and stays."""
_MILLISECONDS: Final = 1e11
"""A larger number is read as milliseconds: as seconds, it would be after the year 5000."""


class FsspecStorage(ObjectStorage):
    """A folder of an fsspec file system."""

    contract_version: ClassVar[int] = 2
    schemes: ClassVar[tuple[str, ...]] = ("dbfs", "hdfs", "webhdfs")
    """The URL schemes that fsspec opens for Forebay: file systems with a reliable put-if-absent."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Open ``url``; ``options`` are passed to the file system under its own names."""
        filesystem, root = _opened(url, options)
        self._set(filesystem, root, url)

    @classmethod
    def on(cls, filesystem: AbstractFileSystem, root: str, url: str) -> FsspecStorage:
        """Return the storage of folder ``root`` in an open file system; ``url`` is for messages."""
        storage = cls.__new__(cls)
        storage._set(filesystem, root, url)  # noqa: SLF001 - one's own class
        return storage

    def _set(self, filesystem: AbstractFileSystem, root: str, url: str) -> None:
        self._fs: Any = filesystem
        self._root = str(filesystem._strip_protocol(root)).rstrip("/")  # noqa: SLF001 - see _info
        self.url = url.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._failing("write", name):
            aside = self._written_aside(path, data)
            if not self._renamed(aside, path):
                self._fs.rm(path)
                self._fs.mv(aside, path)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        with self._failing("write", name):
            if self._fs.exists(path):
                return False
            if self._is(_REPLACING):
                return self._claimed_if_absent(path, data)
            return self._renamed_if_absent(path, data)

    def get(self, name: str) -> bytes:
        path = self._path(name)
        with self._failing("read", name):
            return bytes(self._fs.cat_file(path))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        path = self._path(name)
        with self._failing("read", name):
            wanted = [(start, start + length) for start, length in ranges]
            starts, ends = [start for start, _ in wanted], [end for _, end in wanted]
            if not ranges or not any(length for _, length in ranges):
                self._fs.info(path)
                return [b""] * len(ranges)
            answers = self._fs.cat_ranges([path] * len(ranges), starts, ends, on_error="raise")
            for (start, end), answer in zip(wanted, answers, strict=True):
                if len(answer) != end - start:
                    raise ValueError(f"bytes {start} to {end} reach beyond its end")
            return [bytes(answer) for answer in answers]

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        folder = self._folder(prefix)
        with self._failing("list", prefix):
            try:
                found = self._fs.find(folder, detail=True)
            except FileNotFoundError:  # a prefix without names is not an error
                return []
            # A file with the folder's name is found too.
            entries = (entry for path, entry in found.items() if path.rstrip("/") != folder)
            infos = map(self._info, entries)
            return sorted(filter(None, infos), key=lambda info: info.name)

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        folder = self._folder(prefix)
        with self._failing("list", prefix):
            try:
                found = self._fs.ls(folder, detail=True)
            except (FileNotFoundError, NotADirectoryError):  # the same
                return []
            paths = [entry["name"] for entry in found if entry["type"] == "directory"]
            names = (path.rstrip("/").rpartition("/")[2] for path in paths)
            return sorted(name for name in names if not _is_own(name))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._path(name)
            # Deleting an object that does not exist is not an error.
            with self._failing("delete", name), suppress(FileNotFoundError):
                self._fs.rm(path)
                if self._is(_REPLACING) and self._fs.exists(claim := _claim_of(path)):
                    self._fs.rm(claim, recursive=True)

    def child(self, prefix: str) -> FsspecStorage:
        folder = checked_name(checked_prefix(prefix))
        return self.on(self._fs, self._path(folder), f"{self.url}/{folder}")

    # -- parts --------------------------------------------------------------------------------

    def _written_aside(self, path: str, data: bytes) -> str:
        folder, _, _ = path.rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        aside = f"{folder}/.{secrets.token_hex(12)}{_ASIDE}"
        self._fs.pipe_file(aside, data)
        return aside

    def _renamed_if_absent(self, path: str, data: bytes) -> bool:
        aside = self._written_aside(path, data)
        if self._renamed(aside, path):
            return True
        self._fs.rm(aside)
        return False

    def _renamed(self, source: str, target: str) -> bool:
        """Rename a file; return ``False`` if the target exists and is not replaced."""
        try:
            self._fs.mv(source, target)
        except FileExistsError:
            return False
        return not (self._is(_SILENT) and self._fs.exists(source))

    def _claimed_if_absent(self, path: str, data: bytes) -> bool:
        """Rename a directory that holds the data to the object's claim; the first caller wins.

        Later callers find the winner's data there, and write the object if it is missing: the
        winner may have died before it wrote the object.
        """
        token, claim = secrets.token_hex(12), _claim_of(path)
        mine = f"{path.rpartition('/')[0]}/.{token}{_ASIDE}"
        self._fs.makedirs(mine, exist_ok=True)
        self._fs.pipe_file(f"{mine}/{token}", data)
        self._fs.mv(mine, claim)
        won = bool(self._fs.exists(f"{claim}/{token}"))
        if not won:
            self._fs.rm(f"{claim}/.{token}{_ASIDE}", recursive=True)
            files = [entry for entry in self._fs.ls(claim, detail=True) if entry["type"] == "file"]
            data = bytes(self._fs.cat_file(files[0]["name"]))
        if not self._fs.exists(path):
            self._fs.mv(self._written_aside(path, data), path)
        return won

    def _info(self, entry: Mapping[str, Any]) -> ObjectInfo | None:
        path = str(self._fs._strip_protocol(entry["name"]))  # noqa: SLF001 - fsspec's convention
        name = path.removeprefix(f"{self._root}/")
        if entry["type"] != "file" or any(map(_is_own, name.split("/"))):
            return None
        return ObjectInfo(name, int(entry["size"]), _time_of(entry))

    def _is(self, protocols: frozenset[str]) -> bool:
        named = self._fs.protocol
        return not protocols.isdisjoint({named} if isinstance(named, str) else named)

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_name(name)}"

    def _folder(self, prefix: str) -> str:
        folder = checked_prefix(prefix)
        return self._path(folder) if folder else self._root or "/"

    @contextmanager
    def _failing(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if action == "read":
                raise self.absent(name) from error
            raise self.failed(action, name, error) from error
        except Exception as error:
            # File systems raise anything: their own exceptions, HTTP clients' or Java's.
            raise self.failed(action, name, error) from error


def _opened(url: str, options: Mapping[str, Any]) -> tuple[AbstractFileSystem, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigurationError(
            f"state in {url} needs fsspec: pip install 'forebay-state-api[fsspec]'"
        ) from error
    try:
        # A cached listing does not show the changes of other processes.
        filesystem, root = url_to_fs(url, **{"use_listings_cache": False, **options})
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise ConfigurationError(f"storage at {url!r} cannot be opened: {error}") from error
    return filesystem, root


def _claim_of(path: str) -> str:
    folder, _, last = path.rpartition("/")
    return f"{folder}/.{last}{_CLAIM}"


def _is_own(part: str) -> bool:
    return part.startswith(".") and part.endswith((_ASIDE, _CLAIM))


def _time_of(entry: Mapping[str, Any]) -> datetime:
    given = next((entry[name] for name in _TIMES if entry.get(name) is not None), None)
    if isinstance(given, datetime):
        return given if given.tzinfo else given.replace(tzinfo=UTC)
    if isinstance(given, (int, float)):
        return datetime.fromtimestamp(given / 1e3 if given > _MILLISECONDS else given, UTC)
    return _UNKNOWN_TIME
