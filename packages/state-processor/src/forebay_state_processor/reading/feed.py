"""`open_feed`: what changed in an operator's state between final versions of one timeline.

A consumer keeps a `Position`. To go on, it asks for the positions after it, and reads the
`Difference` to one of them. A position whose version the janitor has deleted, or which belongs to a
timeline that the query has left, is an error that says how to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.choosing.finality import newest_shown
from forebay_engine.versions.choosing.pins import LEASE, Pin
from forebay_engine.versions.choosing.timeline import stored_versions, timeline_version
from forebay_state_api.errors import AbandonedTimelineError, VersionGoneError
from forebay_state_processor.reading.difference import HELD_BYTES, Difference
from forebay_state_processor.reading.history_positions import (
    START,
    Position,
    check_position,
    fork_of,
    is_before,
    is_stored,
)
from forebay_state_processor.reading.snapshot import CACHE_BYTES, Snapshot, snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource
from forebay_state_processor.reading.version_content import VersionPart

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.keys import KeyGroupRange


def open_feed(
    state_dir: str | ObjectStorage,
    *,
    query: str,
    uid: str,
    provisional: bool = False,
    conf: Mapping[str, str] | None = None,
) -> ChangeFeed:
    """Open the feed of changes of one operator's state.

    :param state_dir: the state directory: a path or a URL.
    :param query: the query's id, or the name that was passed as ``query=``.
    :param uid: the operator's uid.
    :param provisional: count versions that a replay of their batch may replace, too.
    :param conf: settings ``spark.forebay.*``, such as the storage's.
    """
    source = OperatorSource.of(state_dir, query=query, uid=uid, conf=conf or {})
    return ChangeFeed(source, provisional=provisional)


@attrs.frozen
class DifferencePart:
    """The part of a difference that one of several readers reads."""

    key_groups: KeyGroupRange
    older_us: int | None
    newer_us: int | None
    """The times of both whole versions, as `ChangeFeed.clock_of` returns them."""


class ChangeFeed:
    """The changes of one operator's state; holds nothing open between calls."""

    def __init__(self, source: OperatorSource, *, provisional: bool = False) -> None:
        """Created by `open_feed`."""
        self.source: Final = source
        self._storage: Final = source.storage
        self._provisional: Final = provisional

    def newest(self) -> Position:
        """Return the position of the newest final version; `START` if there is none yet."""
        shown = newest_shown(self._storage, provisional=self._provisional)
        return START if shown is None else Position.of(shown.at)

    def after(
        self, position: Position, *, most: int | None = None, undo: bool = False
    ) -> list[Position]:
        """Return the stored positions after one, the oldest first, at most ``most`` of them.

        If the query went back behind ``position``, an `AbandonedTimelineError` is raised; with
        ``undo`` the list then begins with the newest position that both timelines contain, so that
        the difference to it takes back what was abandoned. Raises `VersionGoneError` if
        ``position`` was deleted.
        """
        newest = self.newest()
        if newest == position or newest == START == position:
            return []
        if undo and not self._continues(position, newest):
            fork = fork_of(self._storage, position, newest)
            first = [fork] if is_stored(self._storage, fork) else []
            return [*first, *self._between(fork, newest)][:most]
        self.check_continues(position, newest)
        return self._between(position, newest)[:most]

    def between(
        self,
        start: Position,
        end: Position,
        *,
        undo: bool = False,
        show_expired: bool = False,
        cache_bytes: int = CACHE_BYTES,
        held_bytes: int = HELD_BYTES,
        lease: timedelta = LEASE,
        part: DifferencePart | None = None,
    ) -> Difference:
        """Pin two positions and return their difference.

        Raises `AbandonedTimelineError` unless ``end`` continues ``start``, but with ``undo`` any
        two positions are compared; `VersionGoneError` if one was deleted. ``show_expired`` keeps
        what has expired, ``held_bytes`` bounds the memory that rows of the older version take at a
        time (an estimate; the largest row and the page being read come in addition), ``part`` opens
        a part of both versions, and the other parameters are as for `open_state`.
        """
        self._check_stored(end)
        if undo:
            self._check_stored(start)
        else:
            self.check_continues(start, end)
        with ExitStack() as opened:
            sides: list[Snapshot | None] = []
            for position, of_version in zip((start, end), _parts_of(part), strict=True):
                side = self._opened(
                    position, cache_bytes, lease, show_expired=show_expired, part=of_version
                )
                sides.append(None if side is None else opened.enter_context(side))
            opened.pop_all()
        return Difference(start, end, *sides, held_bytes=held_bytes)

    def clock_of(self, position: Position) -> int | None:
        """Return the time of a version's batch in µs, by which data expire; ``None`` if unknown.

        Reads all manifests of the version.
        """
        side = self._opened(position, CACHE_BYTES, LEASE, show_expired=False)
        if side is None:
            return None
        with side:
            return side.now_us

    def hold(self, position: Position, lease: timedelta = LEASE) -> Pin:
        """Pin a position, so that the janitor leaves it until ``close``, or for ``lease``.

        A consumer that holds the position that it goes on from never sees a `VersionGoneError`.
        """
        check_position(position)
        pin = Pin(self._storage, position.version, lease)
        try:
            self._check_stored(position)
        except BaseException:
            pin.close()
            raise
        return pin

    def _opened(
        self,
        position: Position,
        cache_bytes: int,
        lease: timedelta,
        *,
        show_expired: bool,
        part: VersionPart | None = None,
    ) -> Snapshot | None:
        if position == START:
            return None
        try:
            return snapshot_of(
                self.source,
                position.at,
                cache_bytes=cache_bytes,
                lease=lease,
                show_expired=show_expired,
                part=part,
            )
        except VersionGoneError as error:
            raise self._gone_error(position) from error

    def _between(self, start: Position, end: Position) -> list[Position]:
        """Return the stored positions above ``start`` up to ``end``, in their order."""
        stored = stored_versions(self._storage, end.run, end.version)
        positions = (Position.of(at) for at, _ in stored)
        above = takewhile(lambda position: position.version > start.version, positions)
        return [*above][::-1]

    def check_continues(self, start: Position, end: Position) -> None:
        """Raise `AbandonedTimelineError` unless ``end`` continues ``start``.

        Raises `VersionGoneError` if ``start`` was deleted.
        """
        if self._continues(start, end):
            return
        instead = timeline_version(self._storage, end.run, start.version) if end.run else None
        current = "nothing" if instead is None else str(Position.of(instead))
        raise AbandonedTimelineError(
            f"version {start} of operator {self.source.uid!r} in {self._storage.url} is on a "
            f"timeline that the query has left: {end}, the newest version, continues {current} in "
            f"its place. Take back what was read since version {fork_of(self._storage, start, end)}"
            " with undo=True, or start again from the beginning",
            str(start),
            str(end),
        )

    def _continues(self, start: Position, end: Position) -> bool:
        self._check_stored(start)
        return is_before(self._storage, start, end)

    def _check_stored(self, position: Position) -> None:
        check_position(position)
        if is_stored(self._storage, position):
            return
        raise self._gone_error(position)

    def _gone_error(self, position: Position) -> VersionGoneError:
        return self.source.version_gone_error(
            position.at,
            f"Start again with what version {self.newest()} shows, and go on from there: what "
            "changed since is unknown. So that it does not happen again, read more often, hold() "
            "the position that you go on from, or keep more versions with spark.forebay.retention",
        )


def _parts_of(part: DifferencePart | None) -> tuple[VersionPart | None, VersionPart | None]:
    """Return the parts of the older and of the newer version."""
    if part is None:
        return None, None
    older, newer = (VersionPart(part.key_groups, us) for us in (part.older_us, part.newer_us))
    return older, newer
