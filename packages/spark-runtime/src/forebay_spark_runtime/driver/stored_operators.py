"""Reports, when a query starts, stored state that the query does not use.

The state of an operator that the query no longer has is kept, and logged. A query with a new
checkpoint has a new id, and so starts with empty state: if another id has state of the same uid,
the checkpoint may have been lost, and a warning is logged.

An operator's tasks do not know the other operators. The plan of a starting query lists them all by
their observation nodes, and the calls that made them remember where their state is stored. Under
Spark Connect there is no plan to read, and in ``foreachBatch``, where each batch makes its own
operators, no plan lists them all.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions.format.directory_contents import listed, stored_queries
from forebay_engine.versions.format.layout import escaped, unescaped
from forebay_spark_runtime.driver.operator_names import operators_in
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.storage import open_storage

if TYPE_CHECKING:
    from forebay_spark_runtime.driver.options import KeyedOptions

_log = logging.getLogger(__name__)


@attrs.frozen
class _Home:
    """The place in which an operator that was created in this process keeps its state."""

    state_dir: str
    storage_options: Mapping[str, Any] = attrs.field(repr=False)
    is_chosen: bool = False
    """Whether the call chose the initial state, so that a warning is not needed."""


_REMEMBERED: Final = 1000
_pool: Final = DaemonPool("forebay-stored")

_homes: Final[dict[str, _Home]] = {}
"""The state locations by the operators' ``keyed_uuid``."""


def remember(options: KeyedOptions) -> None:
    """Remember where an operator of a stream keeps its state, below Spark's id of the query.

    Operators with ``query=`` are left out: several queries may share state under such a name.
    """
    if options.state_dir is not None and options.batch.query is None:
        _homes[options.keyed_uuid] = _home_of(options.state_dir, options)
        if len(_homes) > _REMEMBERED:
            del _homes[next(iter(_homes))]


def _home_of(state_dir: str, options: KeyedOptions) -> _Home:
    chosen = options.new_state or options.restore is not None
    return _Home(state_dir, options.settings.storage_options(), chosen)


def log_kept(query: str, plan: str, *, is_new: bool = False) -> None:
    """Log, on a thread, the operators whose state is stored for ``query`` but not in its plan.

    :param query: the query's id.
    :param plan: the text of the query's plan.
    :param is_new: the query's checkpoint is new; then warn of other queries' state of its uids
        instead.
    """
    if not _homes:
        return
    observed = operators_in(plan)
    homes = {home.state_dir: home for _, made in observed if (home := _homes.get(made))}
    if not homes:
        return
    uids = {uid for uid, made in observed if not (is_new and _is_chosen(made))}
    log = _warn_of_others if is_new else _log_kept
    _pool.do_if_possible(functools.partial(log, query, uids, [*homes.values()]))


def warn_in_first_batch(options: KeyedOptions) -> None:
    """In the first batch of a ``foreachBatch``: warn of other queries' state of the same uid."""
    batch = options.batch
    if batch.batch_id != 0 or batch.query is None or batch.query != batch.spark_query:
        return
    if options.state_dir is None or (home := _home_of(options.state_dir, options)).is_chosen:
        return
    _pool.do_if_possible(functools.partial(_warn_of_others, batch.query, {options.uid}, [home]))


def _is_chosen(made: str) -> bool:
    home = _homes.get(made)
    return home is not None and home.is_chosen


def _warn_of_others(query: str, uids: Collection[str], homes: Iterable[_Home]) -> None:
    for home in homes:
        try:
            stored = stored_queries(open_storage(home.state_dir, home.storage_options))
        except Exception:  # noqa: BLE001 - no failure here may affect the query
            _log.debug("state other than query %s's was not listed", query, exc_info=True)
            continue
        for uid in sorted(uids):
            others = [other for other, found in stored.items() if uid in found and other != query]
            if others:
                _warn(query, uid, home.state_dir, others)


def _warn(query: str, uid: str, state_dir: str, others: Sequence[str]) -> None:
    message = (
        f"query {query} has a new checkpoint and begins with empty state of operator {uid!r}; "
        f"{state_dir} holds state of that uid of {listed(others)}. If the checkpoint was lost, "
        "stop it and start it with a fresh checkpoint and restore_from= the id to continue from"
    )
    _log.warning("%s", message)
    with contextlib.suppress(RuntimeWarning):  # if warnings are errors: nobody would see this one
        warnings.warn(message, RuntimeWarning, stacklevel=1)


def _log_kept(query: str, uids: Collection[str], homes: Iterable[_Home]) -> None:
    for home in homes:
        try:
            root = open_storage(home.state_dir, home.storage_options)
            stored = {unescaped(name) for name in root.list_folders(escaped(query, "the query"))}
        except Exception:  # noqa: BLE001 - no failure here may affect the query
            _log.debug("the stored state of query %s was not listed", query, exc_info=True)
            continue
        if kept := sorted(stored.difference(uids)):
            _log.info(
                "query %s: operators that are not in its plan, with state kept in %s: %s",
                query,
                home.state_dir,
                ", ".join(kept),
            )
