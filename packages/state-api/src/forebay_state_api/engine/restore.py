"""Start a fork: check the function's declarations, and convert cells of another backend."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.backend import Capability
from forebay_state_api.engine.timers.cells import DIRECTORY, TIMERS
from forebay_state_api.errors import ConfigurationError, StateMigrationError
from forebay_state_api.settings import resolve_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forebay_state_api.contract.backend import Opening, StateBackend, Table
    from forebay_state_api.contract.changes import Changes
    from forebay_state_api.engine.engine import Engine
    from forebay_state_api.versions.operator import TaskVersion

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
            f"declare what is stored there as {names}. Declare it, or pass allow_non_restored=True "
            "to go on without"
        )


def _shown(names: Iterable[str]) -> list[str]:
    """Return the states' names for a message; timers are declared with ``on_timer``."""
    plain = {name for name in names if name not in (TIMERS, DIRECTORY)}
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

    ``opening`` is the opening of the engine's own backend, ``source_options`` are the settings of
    the other backend. Nothing becomes durable before the engine's backend commits. States that are
    not declared are not copied.
    """
    if Capability.EXPORT not in source_class.capabilities:
        raise ConfigurationError(
            f"the state of operator {opening.uid!r} was stored by the backend "
            f"{source_class.name!r}, which cannot hand it to {engine.backend.name!r}. Restore with "
            f"backend={source_class.name!r}"
        )
    assert making.source is not None
    stored = {name for parent in making.converted for name in parent.descriptions}
    source = source_class.open(
        attrs.evolve(
            opening,
            path=f"{opening.path}#source",
            version=making.source.version,
            parents=making.converted,
            options=source_options,
            cache_bytes=0,
            compaction=None,
        )
    )
    try:
        for spec, table in engine.tables():
            if spec.name in stored:
                hand_over(source.table(spec), table)
        if left := stored - engine.descriptions().keys():
            _log.warning(
                "operator %s: not declared, and left behind with the backend %s: %s",
                opening.uid,
                source_class.name,
                ", ".join(_shown(left)),
            )
    finally:
        source.close()


def hand_over(source: Table, target: Table) -> None:
    """Copy all cells of ``source`` to ``target``, which is empty."""
    for changes in source.export(_KEYS):
        _fill_spaces(target, changes)
        target.apply(changes)


def _fill_spaces(target: Table, changes: Changes) -> None:
    """Update a resident table's cells before it gets the changes; with copies: it keeps both."""
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


def default_options(backend: type[StateBackend]) -> dict[str, Any]:
    """Return the defaults of a backend's settings."""
    settings = resolve_settings(
        {}, overrides={"state.backend": backend.name}, backends={backend.name: backend}
    )
    return settings.backend_options()
