"""Caches ranges of remote files on a local disk, for all worker processes of a host.

Each range is a file, written under another name and renamed, so that no reader sees part of one.
It ends with a checksum; a file that does not match counts as absent. Processes need not know of
each other: each one maintains the folders that it writes to, and evicts the least recently used
files.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import xxhash

from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.storage import ForwardingStorage

_log = logging.getLogger(__name__)

_FOLDERS: Final = 64
_CHECKSUM_BYTES: Final = 8
_PASSES_PER_BUDGET: Final = 16
"""A process trims a folder each time it has written this fraction of the folder's budget to it:
one sixteenth."""
_TOUCH_AFTER_S: Final = 60.0
"""Precision of the recorded time of last use."""
_WARN_AFTER_S: Final = 60.0
"""Interval between repeated warnings of a process: a full disk fails at every range."""


class DiskCache:
    """A directory of byte strings by name. Thread-safe; treats disk errors as absence."""

    def __init__(self, directory: str, budget: int) -> None:
        """Use ``directory``, up to ``budget`` bytes; touch nothing before the first `put`."""
        self._root: Final = Path(directory)
        self._folder_budget: Final = budget // _FOLDERS
        self._written: Final = [0] * _FOLDERS
        self._lock: Final = threading.Lock()
        self._warned: Final[dict[str, float]] = {}
        """Message → when it was last logged."""

    def get(self, name: str) -> bytes | None:
        """Return the content put under ``name`` if it is still there and intact."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except OSError:  # missing or unreadable: absent
            return None
        content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if xxhash.xxh3_64_digest(content) != checksum:
            self._warn("disk cache: %s is damaged and is dropped", path)
            with contextlib.suppress(OSError):  # another process may have dropped it
                path.unlink()
            return None
        self._touch(path)
        return content

    def put(self, name: str, content: bytes) -> None:
        """Keep ``content``, evicting the least recently used files if there is no room."""
        path = self._path(name)
        if len(content) > self._folder_budget:
            return
        aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(content + xxhash.xxh3_64_digest(content))
            aside.replace(path)
        except OSError as fault:
            self._warn("disk cache: could not write %s: %s", path, fault)
            with contextlib.suppress(OSError):  # it may not have been created
                aside.unlink()
            return
        self._account(path.parent, len(content) + _CHECKSUM_BYTES)

    def _warn(self, message: str, *arguments: object) -> None:
        """Warn once a minute; log repetitions in between at DEBUG."""
        now = time.monotonic()
        with self._lock:
            due = now >= self._warned.get(message, -math.inf) + _WARN_AFTER_S
            if due:
                self._warned[message] = now
        _log.log(logging.WARNING if due else logging.DEBUG, message, *arguments)

    def _path(self, name: str) -> Path:
        digest = xxhash.xxh3_128_hexdigest(name.encode())
        return self._root / f"{int(digest[:2], 16) % _FOLDERS:02x}" / digest

    def _touch(self, path: Path) -> None:
        now = time.time()
        with contextlib.suppress(OSError):  # another process may have cleared it
            if now - path.stat().st_mtime > _TOUCH_AFTER_S:
                os.utime(path, (now, now))

    def _account(self, folder: Path, size: int) -> None:
        number = int(folder.name, 16)
        with self._lock:
            if not self._written[number]:
                # How much other and earlier processes have left there is not known yet.
                self._written[number] = self._folder_budget
            self._written[number] += size
            if self._written[number] < self._folder_budget // _PASSES_PER_BUDGET:
                return
            self._written[number] = 1
        self._clear(folder)

    def _clear(self, folder: Path) -> None:
        """Remove least recently used files of a folder until it fits its budget."""
        found = sorted(_entries(folder))
        excess = sum(size for _, size, _ in found) - self._folder_budget
        for _, size, path in found:
            if excess <= 0:
                return
            with contextlib.suppress(OSError):  # another process may have cleared it
                os.unlink(path)  # noqa: PTH108 - a path of scandir's
            excess -= size


def _entries(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Yield time of last use, size and path of each file."""
    # There is nothing to trim in a folder that cannot be listed.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process may have cleared it
                stat = entry.stat()
                yield stat.st_mtime, stat.st_size, entry.path


class CachedRanges(ForwardingStorage):
    """A storage that caches ranges on a local disk. Files must never change."""

    def __init__(self, inner: ObjectStorage, directory: str, budget: int) -> None:
        """Cache ranges read from ``inner`` in ``directory``, within ``budget`` bytes."""
        super().__init__(inner)
        self._cache: Final = _cache_of(directory, budget)
        self.hits = 0
        """Ranges that the disk had."""
        self.misses = 0

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        keys = [f"{self.url}\n{name}\n{start}\n{length}" for start, length in ranges]
        answers = [self._cache.get(key) for key in keys]
        absent = [i for i, answer in enumerate(answers) if answer is None]
        self.hits += len(ranges) - len(absent)
        self.misses += len(absent)
        if absent:
            read = self.inner.get_ranges(name, [ranges[i] for i in absent])
            for i, data in zip(absent, read, strict=True):
                self._cache.put(keys[i], data)
                answers[i] = data
        return [answer for answer in answers if answer is not None]


_caches: Final[dict[tuple[str, int], DiskCache]] = {}


def _cache_of(directory: str, budget: int) -> DiskCache:
    """Return this process's cache for a directory, which tracks how much it has written."""
    return _caches.setdefault((directory, budget), DiskCache(directory, budget))
