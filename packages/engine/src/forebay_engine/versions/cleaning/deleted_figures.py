"""History: the names of manifests that the janitor deletes, so that their figures stay readable.

Before a pass deletes manifests, it puts their names and times as one object
``history/<newest>-<oldest>-<digest>`` (versions inverted, as everywhere). The digest is of the
names, so that a pass that is repeated after a failure writes the same object again. Objects of two
passes may name one manifest: readers count it once. A version is remembered for `KEPT_VERSIONS`
versions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs
import xxhash

from forebay_engine.versions.cleaning.deletions import one_line
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.checksummed import read_sealed, seal
from forebay_state_api.contract.file_names import inverted, version_of
from forebay_state_api.contract.object_storage import ObjectInfo, ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError, StorageError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)

KEPT_VERSIONS: Final = 1_000
"""A version is remembered until its run has committed this many versions above it."""
_MOST_NAMES: Final = 10_000
"""The most manifests in one object, of about 150 bytes each."""
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAME: Final = re.compile(rf"{layout.HISTORY}/([0-9a-f]{{12}})-([0-9a-f]{{12}})-([0-9a-f]{{16}})")


@attrs.frozen(kw_only=True)
class HistoryBlock:
    """One object of the history, as a listing shows it."""

    name: str
    newest: int
    oldest: int

    @classmethod
    def parse(cls, name: str) -> HistoryBlock | None:
        """Read an object's name; ``None`` if it is not a name of the history."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        newest, oldest = version_of(match[1]), version_of(match[2])
        assert newest is not None
        assert oldest is not None
        return cls(name=name, newest=newest, oldest=oldest)


def remember(storage: ObjectStorage, manifests: Iterable[Made]) -> None:
    """Put the names of manifests that are about to be deleted into the history.

    The history is for people: if it cannot be written, a warning is logged.
    """
    try:
        _put_blocks(storage, manifests)
    except StorageError as error:
        _log.warning("%s; the figures of these versions are lost", one_line(error))


def _put_blocks(storage: ObjectStorage, manifests: Iterable[Made]) -> None:
    ordered = sorted(manifests, key=lambda made: made.name)
    for start in range(0, len(ordered), _MOST_NAMES):
        part = ordered[start : start + _MOST_NAMES]
        rows = [[made.name, (made.modified - _EPOCH) // _MICROSECOND] for made in part]
        storage.put(_block_name(part), seal({"manifests": rows}))


def _block_name(part: Sequence[Made]) -> str:
    digest = xxhash.xxh3_64_hexdigest("\n".join(made.name for made in part).encode())
    versions = [made.by.version for made in part]
    ends = f"{inverted(max(versions))}-{inverted(min(versions))}"
    return f"{layout.HISTORY}/{ends}-{digest}"


def forgotten(storage: ObjectStorage, committed_version: int) -> Sequence[ObjectInfo]:
    """Return the objects of the history that hold no version that is remembered (one request)."""
    oldest = committed_version - KEPT_VERSIONS
    found = ((info, HistoryBlock.parse(info.name)) for info in storage.list(layout.HISTORY))
    return [info for info, block in found if block is not None and block.newest < oldest]


def read_block(storage: ObjectStorage, block: HistoryBlock) -> Sequence[Made]:
    """Return the manifests in an object of the history.

    Returns none if the object is damaged or deleted.
    """
    try:
        data = storage.get(block.name)
        return read_sealed(data, f"{block.name} in {storage.url}", _manifests)
    except ObjectNotFoundError:  # forgotten since it was listed
        return ()
    except CorruptStateError as error:
        _log.warning("figures of versions %d to %d: %s", block.oldest, block.newest, error)
        return ()


def _manifests(payload: Mapping[str, Any]) -> Sequence[Made]:
    found = (Made.of_whole(name, _EPOCH + us * _MICROSECOND) for name, us in payload["manifests"])
    return [made for made in found if made is not None]
