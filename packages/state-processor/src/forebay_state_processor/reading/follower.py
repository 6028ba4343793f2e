"""`Follower`: an operator's state as its newest final version shows it, in any process.

A thread looks for a newer final version once in a poll, pins it, looks the cached keys up in it,
and only then shows it. So look-ups of cached keys never wait for storage, and all look-ups see one
version at a time. The job is not involved: nothing but pins is written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_engine.versions.format.namespaces import canonical_namespace
from forebay_state_api.errors import (
    AbandonedTimelineError,
    ForebayError,
    NoThreadError,
    VersionGoneError,
)
from forebay_state_api.settings import DURATION, Setting
from forebay_state_api.threads import start_thread
from forebay_state_processor.reading.feed import ChangeFeed
from forebay_state_processor.reading.history_positions import START, Position
from forebay_state_processor.reading.snapshot import snapshot_of

if TYPE_CHECKING:
    from forebay_state_processor.reading.snapshot import Snapshot
    from forebay_state_processor.reading.stored_states import StateInfo
    from forebay_state_processor.reading.version_choice import OperatorSource

_log = logging.getLogger(__name__)


def _poll(given: Any) -> timedelta:
    setting = Setting("poll", DURATION, None, "")
    return timedelta(seconds=setting.value_of(given, key="FollowOptions.poll"))


@attrs.frozen(kw_only=True)
class FollowOptions:
    """Options of a `Follower`."""

    poll: timedelta = attrs.field(default=timedelta(seconds=2), converter=_poll)
    """The time within which a final version is shown: looks for a newer one begin earlier by what
    the last one took to show it. Each look makes six requests, five of them lists, also if there
    is no newer version (`docs/how-to/storage.md` has the price)."""
    cached_keys: int = 100_000
    """Number of look-ups whose results are kept; the least recently used are dropped."""
    change_timeline: bool = False
    """Whether to go on with the newest version when the query goes back behind the version that is
    shown, or when that was deleted; otherwise look-ups raise `AbandonedTimelineError` or
    `VersionGoneError` from then on."""


_LEAST_PAUSE: Final = 0.1
"""The part of the pause that is left, however long a look takes."""
_Asked = tuple[str, Any, Any]
"""State, namespace, address of the key."""


class Follower:
    """Shows the newest final version, one at a time, until `close`; also a context manager.

    Look-ups may come from several threads. Do not change the lists and dicts that they return:
    other look-ups get the same ones.
    """

    def __init__(
        self,
        source: OperatorSource,
        options: FollowOptions,
        **opening: Any,
    ) -> None:
        """Created by `open_state`; ``opening`` are the parameters of `snapshot_of`."""
        self._source: Final = source
        self._feed: Final = ChangeFeed(source)
        self._options: Final = options
        self._opening: Final = opening
        self._lock: Final = threading.Lock()
        self._moving: Final = threading.Lock()
        self._moved: Final = threading.Condition()
        began = time.monotonic()
        self._shown: _ShownVersion = source.opened(self._open)
        self._move_s = time.monotonic() - began
        """The time that the last move to a newer version took, before the first one the opening."""
        self._fault: ForebayError | None = None
        self._closed: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._follow, name="forebay-follower", daemon=True
        )
        try:
            start_thread(self._thread)
        except NoThreadError:
            self._shown.retire()
            raise

    @property
    def position(self) -> Position:
        """The version that is shown, and its run."""
        return self._shown.position

    @property
    def version(self) -> int:
        """The number of the version that is shown."""
        return self._shown.position.version

    @property
    def states(self) -> Mapping[str, StateInfo]:
        """The keyed states of the version that is shown, by name."""
        return self._shown.snapshot.states

    def get(self, state: str, key: Any, namespace: Any = None) -> Any:
        """Return the value, list or dict of a state under one key, as `Snapshot.get`."""
        return self.get_many(state, [key], namespace)[0]

    def get_many(self, state: str, keys: Sequence[Any], namespace: Any = None) -> list[Any]:
        """Return the content of a state under each of ``keys``, all of one version.

        Unless the follower may change the timeline, raises `AbandonedTimelineError` once the query
        went back behind the version that was shown, and `VersionGoneError` once that version
        was deleted, as after its pin expired while the process was suspended.
        """
        with self._held() as shown:
            return shown.get_many(state, keys, namespace)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Hold the version that is shown for as long as the context lasts: for scans and Arrow."""
        with self._held() as shown:
            yield shown.snapshot

    def refresh(self) -> bool:
        """Look for a newer version now and show it; return whether there was one.

        Raises what the look-up of versions raises; the version that is shown stays.
        """
        with self._moving:
            if self._closed.is_set():
                return False
            newest = self._feed.newest()
            if newest in {START, self.position}:
                return False
            if not self._options.change_timeline:
                self._feed.check_continues(self.position, newest)
            self._show(self._open(ShownVersion(newest.at, final=True)))
            return True

    def wait_for(self, version: int, timeout_s: float | None = None) -> bool:
        """Wait until a version, or a later one, is shown; return whether it is.

        Raises as `get_many` does.
        """

        def done() -> bool:
            return self._fault is not None or self.version >= version or self._closed.is_set()

        with self._moved:
            self._moved.wait_for(done, timeout_s)
        self._check_fault()
        return self.version >= version

    def close(self) -> None:
        """Stop following, and release the version. Safe to call twice."""
        self._closed.set()
        with self._moved:
            self._moved.notify_all()
        self._thread.join()
        self._shown.retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop following, also after a failure."""
        self.close()

    def __repr__(self) -> str:
        """Show the operator and the position."""
        return f"<Follower of {self._source.uid!r} at {self.position}>"

    def _follow(self) -> None:
        """Look for newer versions until the end."""
        pause_s = self._pause_s(0.0)
        while not self._closed.wait(pause_s):
            try:
                pause_s = self._look()
            except (AbandonedTimelineError, VersionGoneError) as fault:
                self._stop(fault)
                return

    def _look(self) -> float:
        """Show a newer version, if there is one; return the pause until the next look."""
        began = time.monotonic()
        try:
            if self.refresh():
                self._move_s = time.monotonic() - began
            self._shown.snapshot.opened.check_open()
        except (AbandonedTimelineError, VersionGoneError):
            raise
        except Exception as fault:  # noqa: BLE001 - the thread outlives whatever a look meets
            _log.warning("%r stays: %s", self, fault)
        return self._pause_s(time.monotonic() - began)

    def _pause_s(self, look_s: float) -> float:
        """Return the pause after a look that took ``look_s``.

        A version that comes after the beginning of this look is shown at the end of the next one:
        within one poll, if that takes as long as the last move.
        """
        poll_s = self._options.poll.total_seconds()
        return max(poll_s - look_s - self._move_s, poll_s * _LEAST_PAUSE)

    def _stop(self, fault: ForebayError) -> None:
        with self._moved:
            self._fault = fault
            self._moved.notify_all()

    def _check_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _open(self, chosen: ShownVersion) -> _ShownVersion:
        return _ShownVersion(
            snapshot_of(self._source, chosen, **self._opening), self._options.cached_keys
        )

    def _show(self, following: _ShownVersion) -> None:
        """Show a version as soon as the cached keys have been looked up in it."""
        try:
            following.warm(self._shown)
        except BaseException:
            following.retire()
            raise
        with self._lock:
            before, self._shown = self._shown, following
        before.retire()
        with self._moved:
            self._moved.notify_all()

    @contextmanager
    def _held(self) -> Iterator[_ShownVersion]:
        self._check_fault()
        with self._lock:
            shown = self._shown
            shown.hold()
        try:
            yield shown
        finally:
            shown.release()


class _ShownVersion:
    """A snapshot with the results of look-ups; it is closed when the last user has left it."""

    def __init__(self, snapshot: Snapshot, most: int) -> None:
        """``most`` is the number of look-ups whose results are kept."""
        self.snapshot: Final = snapshot
        self.position: Final = Position(snapshot.version, snapshot.run)
        self._most: Final = most
        self._found: Final[OrderedDict[_Asked, tuple[Any, Any]]] = OrderedDict()
        self._lock: Final = threading.Lock()
        self._users = 1
        self._retired = False

    def get_many(self, state: str, keys: Sequence[Any], namespace: Any) -> list[Any]:
        """Return contents, from the cache where they are."""
        where = canonical_namespace(namespace)
        asked = [(state, where, self.snapshot.address_of(key)) for key in keys]
        with self._lock:
            found = [self._cached(one) for one in asked]
        missing = [at for at, content in enumerate(found) if content is _MISSING]
        if missing:
            contents = self.snapshot.get_many(state, [keys[at] for at in missing], namespace)
            for at, content in zip(missing, contents, strict=True):
                found[at] = content
            with self._lock:
                self._keep((asked[at], keys[at], found[at]) for at in missing)
        return found

    def warm(self, before: _ShownVersion) -> None:
        """Look up the keys that another version has cached.

        States that no longer exist are left out.
        """
        groups: dict[tuple[str, Any], list[Any]] = {}
        for (state, namespace, _), key in before.cached_keys():
            if state in self.snapshot.states:
                groups.setdefault((state, namespace), []).append(key)
        for (state, namespace), keys in groups.items():
            self.get_many(state, keys, namespace)

    def cached_keys(self) -> list[tuple[_Asked, Any]]:
        """Return the look-ups whose results are kept, with their keys."""
        with self._lock:
            return [(asked, key) for asked, (key, _) in self._found.items()]

    def hold(self) -> None:
        """Keep the snapshot open until `release`."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Close the snapshot if no caller holds it any more."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.snapshot.close()

    def retire(self) -> None:
        """Give up the follower's own hold. Safe to call twice."""
        with self._lock:
            retired, self._retired = self._retired, True
        if not retired:
            self.release()

    def _cached(self, asked: _Asked) -> Any:
        kept = self._found.get(asked)
        if kept is None:
            return _MISSING
        self._found.move_to_end(asked)
        return kept[1]

    def _keep(self, contents: Iterable[tuple[_Asked, Any, Any]]) -> None:
        for asked, key, content in contents:
            self._found[asked] = (key, content)
        while len(self._found) > self._most:
            self._found.popitem(last=False)


_MISSING: Final = object()
