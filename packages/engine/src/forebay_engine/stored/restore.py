"""Copy state into an empty backend: from another backend, or with another kind of TTL."""

from __future__ import annotations

import logging
import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions.format.timer_tables import TIMER_TABLES
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import StateMigrationError
from forebay_state_api.settings import resolve_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forebay_engine.execution.engine import Engine
    from forebay_engine.versions.operator import TaskVersion
    from forebay_state_api.contract.backend import Opening, StateBackend, Table, TableSpec
    from forebay_state_api.contract.changes import Changes

_log = logging.getLogger(__name__)

_KEYS: Final = 4_096
"""Number of keys handed over at a time."""


def check_matched(making: TaskVersion, engine: Engine, *, allowed: bool) -> None:
    """Refuse a fork whose function does not declare every stored state, unless it is ``allowed``.

    Raises `StateMigrationError`.
    """
    source = making.source
    if source is None:
        return
    stored = {name for manifest in making.manifests for name in manifest.descriptions}
    unmatched = stored - engine.descriptions().keys()
    if engine.operator_state is not None:
        unmatched |= set(engine.operator_state.undeclared)
    if unmatched and not allowed:
        names = ", ".join(_shown(unmatched))
        raise StateMigrationError(
            f"restoring operator {source.uid!r} at version {source.version}: the function does not "
            f"declare the stored states {names}. Declare them, or pass allow_non_restored=True "
            "to start without them"
        )


def _shown(names: Iterable[str]) -> list[str]:
    """Return the states' names for a message; timers are declared with ``on_timer``."""
    plain = {name for name in names if name not in TIMER_TABLES}
    shown = [repr(name) for name in sorted(plain)]
    return shown if len(plain) == len({*names}) else [*shown, "timers (which on_timer declares)"]


def convert(
    making: TaskVersion,
    engine: Engine,
    opening: Opening,
    source_class: type[StateBackend],
    source_options: Mapping[str, Any],
) -> None:
    """Copy the cells of all declared states from the backend that stored them to the engine's.

    ``opening`` is the opening of the engine's own backend, which is empty; ``source_options`` are
    the settings of the other backend, which may be of the same class. Nothing becomes durable
    before the engine's backend commits. States that are not declared are not copied. Cells of a
    state whose TTL was switched on count as written now; if it was switched off, they lose their
    times.
    """
    stored_by = making.converted or making.parents
    version = making.opened_version if making.source is None else making.source.version
    for parent in stored_by:
        source = source_class.open(
            attrs.evolve(
                opening,
                path=f"{opening.path}#source",
                version=version,
                range=parent.range,
                parents=[parent],
                options=source_options,
                cache_bytes=0,
                compaction=None,
            )
        )
        try:
            for spec, table in engine.tables():
                if (stored := parent.descriptions.get(spec.name)) is not None:
                    _copy(source, bool(stored["ttl"]), spec, table, opening.now_us)
        finally:
            source.close()
    left = {name for parent in stored_by for name in parent.descriptions}
    if left := left - engine.descriptions().keys():
        _log.warning(
            "operator %s: not declared, and left behind with the backend %s: %s",
            opening.uid,
            source_class.name,
            ", ".join(_shown(left)),
        )


def check_complete(making: TaskVersion, engine: Engine) -> None:
    """Refuse to rewrite the state if the function does not declare all of it.

    Raises `StateMigrationError`, since undeclared state would be lost.
    """
    stored = {name for parent in making.parents for name in parent.descriptions}
    if left := stored - engine.descriptions().keys():
        raise StateMigrationError(
            f"operator {engine.context.operator_uid!r}: switching a TTL rewrites all states, and "
            f"the function does not declare {', '.join(_shown(left))}. Declare every stored state "
            "in the start that switches"
        )


def _copy(
    source: StateBackend,
    had_ttl: bool,  # noqa: FBT001 - the stored half of `TableSpec.ttl`
    spec: TableSpec,
    target: Table,
    now_us: int,
) -> None:
    """Copy all cells of one state, and give them times, or take their times, as declared."""
    if had_ttl == spec.ttl:
        copy_cells(source.table(spec), target)
        return
    if now_us == NO_TIME:  # a subtask without rows: what has no time would expire at once
        now_us = time.time_ns() // 1_000
    stored = attrs.evolve(
        spec,
        ttl=had_ttl,
        compaction_expiry=None,
        compaction_clock_every=None,
        snapshot_expiry=None,
    )
    copy_cells(source.table(stored), target, (lambda v: (now_us, v)) if spec.ttl else itemgetter(1))


def copy_cells(source: Table, target: Table, convert: Callable[[Any], Any] | None = None) -> None:
    """Copy all cells of ``source`` to ``target``, which is empty.

    ``convert`` changes each value, list element and map entry.
    """
    for changes in source.export(_KEYS):
        if convert is not None:
            _convert(changes, convert)
        fill(target, changes)


def _convert(changes: Changes, convert: Callable[[Any], Any]) -> None:
    for points in changes.points.values():
        points.values = [*map(convert, points.values)]
    for lists in changes.lists.values():
        for one in lists.values():
            one.elements = [*map(convert, one.elements)]
    for maps in changes.maps.values():
        for entries in maps.values():
            entries.entries = {key: convert(value) for key, value in entries.entries.items()}


def fill(target: Table, changes: Changes) -> None:
    """Pass changes made by `Changes.whole` to a table that holds none of their keys.

    The cells of a resident table are updated first, with copies, because the table keeps them.
    """
    for namespace, points in changes.points.items():
        space = target.space(namespace)
        if space.complete:
            space.cells.update(zip(points.keys, points.values, strict=True))
    for namespace, lists in changes.lists.items():
        space = target.space(namespace)
        if space.complete:
            space.cells.update({key: list(change.elements) for key, change in lists.items()})
    for namespace, maps in changes.maps.items():
        space = target.space(namespace)
        if space.complete:
            space.cells.update({key: dict(change.entries) for key, change in maps.items()})
    target.apply(changes)


def default_options(backend: type[StateBackend]) -> dict[str, Any]:
    """Return the defaults of a backend's settings."""
    settings = resolve_settings(
        {}, overrides={"state.backend": backend.name}, backends={backend.name: backend}
    )
    return settings.backend_options()
