"""`open_state`: one version of an operator's state, or always the newest final one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Literal, overload

from forebay_engine.versions.choosing.pins import LEASE, checked_lease
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.reading.follower import Follower, FollowOptions
from forebay_state_processor.reading.snapshot import CACHE_BYTES, Snapshot, snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource


@overload
def open_state(
    state_dir: str,
    *,
    query: str,
    uid: str,
    version: int | str | None = None,
    run: str | None = None,
    provisional: bool = False,
    show_expired: bool = False,
    follow: Literal[False] = False,
    conf: Mapping[str, str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    lease: timedelta = LEASE,
) -> Snapshot: ...


@overload
def open_state(
    state_dir: str,
    *,
    query: str,
    uid: str,
    show_expired: bool = False,
    follow: Literal[True] | FollowOptions,
    conf: Mapping[str, str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    lease: timedelta = LEASE,
) -> Follower: ...


def open_state(
    state_dir: str,
    *,
    query: str,
    uid: str,
    version: int | str | None = None,
    run: str | None = None,
    provisional: bool = False,
    show_expired: bool = False,
    follow: bool | FollowOptions = False,
    conf: Mapping[str, str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    lease: timedelta = LEASE,
) -> Snapshot | Follower:
    """Open one version of an operator's committed state; nothing of the job is disturbed.

    :param state_dir: the state directory: a path or a URL.
    :param query: the query's id, or the name that was passed as ``query=``.
    :param uid: the operator's uid.
    :param version: a number, the name of a savepoint, or ``None`` for the newest version. A number
        counts in the current timeline; if it was skipped, the version below it is opened, and if it
        was deleted it is refused.
    :param run: with a number: the key of the run that made it, also in an abandoned timeline.
    :param provisional: accept a version that a replay of its batch may replace.
    :param show_expired: show data that have expired at the version's time, too.
    :param follow: return a `Follower`, which always shows the newest final version; pass
        `FollowOptions` for options of its own.
    :param conf: settings ``spark.forebay.*``, such as the storage's.
    :param cache_bytes: the budget for what the backend keeps between look-ups.
    :param lease: how long the pin outlives this process if it ends without `Snapshot.close`: from
        1 second to 3,650 days.

    Raises `ConfigurationError` where there is no such version, `VersionGoneError` if the janitor
    deletes it meanwhile, `CorruptStateError` for damage, also where it shows that a newer version
    must be there.
    """
    checked_lease(lease)
    source = OperatorSource.of(state_dir, query=query, uid=uid, conf=conf or {})
    if follow is False:
        open_ = partial(
            snapshot_of, source, cache_bytes=cache_bytes, lease=lease, show_expired=show_expired
        )
        return source.opened(open_, version, run=run, provisional=provisional)
    if version is not None or run is not None or provisional:
        raise ConfigurationError(
            "follow= always shows the newest final version: leave out version=, run= and "
            "provisional="
        )
    return Follower(
        source,
        FollowOptions() if follow is True else follow,
        cache_bytes=cache_bytes,
        lease=lease,
        show_expired=show_expired,
    )
