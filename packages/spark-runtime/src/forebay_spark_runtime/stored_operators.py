"""Logging, as a query starts, whose state it has stored though it has no such operator any more.

An operator's own tasks know of no other one. The plan of a query that starts names all of them, by
what each observes; where state lives is what the calls that made them were told. Under Spark
Connect and in ``foreachBatch``, whose batches make operators of their own, no plan tells all.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.storage import open_storage
from forebay_state_api.versions.layout import escaped, unescaped

if TYPE_CHECKING:
    from forebay_spark_runtime.options import KeyedOptions

_log = logging.getLogger(__name__)

_OBSERVED: Final = re.compile(r"CollectMetrics forebay:(.+):([0-9a-f-]{36}),")


@attrs.frozen
class _Home:
    """Where operators that were made in this process keep their state."""

    state_dir: str
    storage_options: Mapping[str, Any] = attrs.field(repr=False)


_REMEMBERED: Final = 1000

_homes: Final[dict[str, _Home]] = {}
"""By what was drawn for each operator that was made."""


def remember(options: KeyedOptions) -> None:
    """Note where an operator of a stream keeps its state, below the id that Spark gives the query.

    State under a name of the user's own may be that of several queries.
    """
    if options.state_dir is not None and options.batch.query is None:
        home = _Home(options.state_dir, options.settings.storage_options())
        _homes[options.keyed_uuid] = home
        if len(_homes) > _REMEMBERED:
            del _homes[next(iter(_homes))]


def log_kept(query: str, plan: Callable[[], str]) -> threading.Thread | None:
    """Log what is stored for the query of this plan, and not in it, on a thread: nothing waits.

    Returns the thread, a daemon; ``None`` if nothing can be stored.
    """
    if not _homes:
        return None
    observed = _OBSERVED.findall(plan())
    homes = {home.state_dir: home for _, made in observed if (home := _homes.get(made))}
    if not homes:
        return None
    uids = {uid for uid, _ in observed}
    thread = threading.Thread(
        target=_log_kept, args=(query, uids, homes.values()), name="forebay-stored", daemon=True
    )
    thread.start()
    return thread


def _log_kept(query: str, uids: Collection[str], homes: Iterable[_Home]) -> None:
    for home in homes:
        try:
            root = open_storage(home.state_dir, home.storage_options)
            stored = {unescaped(name) for name in root.list_folders(escaped(query, "the query"))}
        except Exception:  # noqa: BLE001 - the query has nothing to do with it, whatever it is
            _log.debug("what is stored for query %s was not listed", query, exc_info=True)
            continue
        if kept := sorted(stored.difference(uids)):
            _log.info(
                "query %s: not among the operators of its plan, and their state kept in %s: %s",
                query,
                home.state_dir,
                ", ".join(kept),
            )
