"""Positions in the history of an operator's state, and the timelines that they belong to.

A version's number alone does not identify it: after a query went back, two versions may have the
number 7. So a position is a version together with the key of the run that made it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self

import attrs

from forebay_engine.versions.choosing.opening import is_whole
from forebay_engine.versions.choosing.timeline import record_of_begun
from forebay_engine.versions.format.epochs import RunVersion
from forebay_state_api.contract.file_names import LAST_VERSION
from forebay_state_api.errors import ConfigurationError, VersionGoneError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_TEXT: Final = re.compile(r"(\d{1,15})@([0-9a-f]*)")
"""A version of more digits is above all that there can be."""


@attrs.frozen
class Position:
    """One version of an operator's state, made by one run."""

    version: int
    run: str
    """The key of the run; empty for `START`."""

    @classmethod
    def of(cls, at: RunVersion) -> Self:
        """Return the position of a version."""
        return cls(at.version, at.run_key or "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``7@<run>``, the result of ``str``; `ConfigurationError` for any other text."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) > LAST_VERSION:
            raise ConfigurationError(
                f"{text!r:.100} is not a position: write a version and its run, as in "
                "7@1f0c2a9e6b3d4875"
            )
        return cls(int(match[1]), match[2])

    @property
    def at(self) -> RunVersion:
        """The version, as the protocol of versions names it."""
        return RunVersion(version=self.version, run_key=self.run or None)

    def __str__(self) -> str:
        """Return the position as ``<version>@<run>``."""
        return f"{self.version}@{self.run}"


START: Final = Position(0, "")
"""The position before the first version: nothing is stored."""


@attrs.frozen
class Stretch:
    """The part of a timeline that one run made: versions above ``since`` up to ``top``."""

    run: str
    since: int
    top: int
    continues: str
    """The run that made the version below; empty if there is none."""

    def holds(self, position: Position) -> bool:
        """Return whether the run made the position here."""
        return self.run == position.run and self.since < position.version <= self.top


def stretches(storage: ObjectStorage, end: Position) -> Iterator[Stretch]:
    """Yield the stretches of the timeline that ends at a position, the newest first.

    It ends early where a run's record was deleted, long after its versions.
    """
    run, top = end.run, end.version
    while run:
        record = record_of_begun(storage, run)
        if record is None:
            return
        below = record.origin.run_key or ""
        yield Stretch(run, record.since, top, below)
        run, top = below, record.origin.version


def is_before(storage: ObjectStorage, start: Position, end: Position) -> bool:
    """Return whether ``end`` continues ``start``: both are on one timeline, in this order.

    Raises `VersionGoneError` if that is not known any more: the records of runs between them were
    deleted, long after their versions.
    """
    if start in {START, end}:
        return True
    oldest: Stretch | None = None
    for oldest in stretches(storage, end):
        if oldest.run == start.run or oldest.since < start.version:
            return oldest.holds(start)
    if oldest is not None and oldest.continues:
        raise VersionGoneError(
            f"whether version {end} in {storage.url} continues version {start} is not known any "
            f"more: the janitor has deleted the versions of run {oldest.continues} between them, "
            f"and its record. Start again with what version {end} shows"
        )
    return False


def fork_of(storage: ObjectStorage, one: Position, other: Position) -> Position:
    """Return the newest position that both timelines contain; `START` if there is none."""
    tops = {stretch.run: stretch for stretch in stretches(storage, one)}
    for stretch in stretches(storage, other):
        shared = tops.get(stretch.run)
        if shared is not None:
            return Position(min(stretch.top, shared.top), stretch.run)
    return START


def check_position(position: object) -> None:
    """Raise `ConfigurationError` for anything but a `Position`, such as its text."""
    if not isinstance(position, Position):
        raise ConfigurationError(
            f"a position is a forebay_state_processor.reading.Position, not {position!r:.100}: "
            "Position.parse makes one of its text"
        )


def is_stored(storage: ObjectStorage, position: Position) -> bool:
    """Return whether a position can still be opened (one request); `START` always can."""
    if position == START:
        return True
    return is_whole(storage, position.at)
