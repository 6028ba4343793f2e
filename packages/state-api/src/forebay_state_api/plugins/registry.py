"""Find installed plugins: backends, compaction services, operators, storages, commands.

`plugins` returns the process's `Plugins`, a typed wrapper around pluggy with one method per hook;
the hooks themselves are in `forebay_state_api.contract.hookspecs`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import attrs

from forebay_state_api.contract.hookspecs import PROJECT, Operator
from forebay_state_api.errors import PluginError, UnknownPluginError
from forebay_state_api.plugins.kinds import (
    BACKENDS,
    COMMANDS,
    COMPACTORS,
    KINDS,
    OPERATORS,
    SERVICES,
    STORAGES,
    PluginKind,
    missing_message,
)
from forebay_state_api.plugins.sources import Fault, Found, Offer, Origin, PluginSource, source_of

if TYPE_CHECKING:
    import click

    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.compactor import Compactor
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class InstalledPlugin:
    """An installed plugin, as a row of ``forebay plugins``."""

    plugin: str
    """Name of the entry point."""
    distribution: str
    version: str
    """Version of the distribution; empty for a plugin that was registered by hand."""
    offers: Mapping[str, tuple[str, ...]]
    """PluginKind (``state backend``, ``command`` …) → names; only kinds that it provides."""
    contract_versions: tuple[int, ...]
    """The contract versions that the things it provides were written for; commands have none."""
    problems: tuple[str, ...] = ()
    """One text for each thing that cannot be used, or for the whole plugin, with the reason."""


EntryPoints = Callable[[], Iterable[importlib.metadata.EntryPoint]]


def _installed_entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=PROJECT)


class Plugins:
    """The installed plugins; each is imported and asked once, when it is first needed.

    A broken plugin affects only its users. If it cannot be imported, does not match the hooks, or
    provides something unusable (of a contract version that is not served, without a name, abstract,
    …), everything that works is still found, `installed` has the reason, and a request for the
    broken thing raises it as a `PluginError`. If two plugins provide things of one name, neither is
    found by it, unless the project itself publishes the name: then the project's is found.

    A name that the project publishes is looked up in its own distribution first, so that no other
    plugin is imported for it. Methods may be called from any thread.
    """

    def __init__(self, entry_points: EntryPoints = _installed_entry_points) -> None:
        """Read plugins from ``entry_points``; tests pass ``tuple`` to start without any."""
        self._entry_points = entry_points
        self._known: dict[str, PluginSource] | None = None
        self._lock = threading.RLock()

    def backends(self) -> dict[str, type[StateBackend]]:
        """Return all state backends by name."""
        return self._values(BACKENDS)

    def backend(self, name: str) -> type[StateBackend]:
        """Return the state backend ``name``; raises `UnknownPluginError` if it is not installed."""
        return cast("type[StateBackend]", self._value(BACKENDS, name))

    def compaction_services(self) -> dict[str, type[CompactionService]]:
        """Return all compaction services by name."""
        return self._values(SERVICES)

    def compaction_service(self, name: str) -> type[CompactionService]:
        """Return the compaction service ``name``; raises `UnknownPluginError` if not installed."""
        return cast("type[CompactionService]", self._value(SERVICES, name))

    def compactors(self) -> dict[str, Compactor]:
        """Return all compactors by file format."""
        return self._values(COMPACTORS)

    def compactor(self, format: str) -> Compactor:  # noqa: A002 - the word of the hook
        """Return the compactor of a file format; raises `UnknownPluginError` if not installed."""
        return cast("Compactor", self._value(COMPACTORS, format))

    def operators(self) -> dict[str, Operator]:
        """Return all operators by name."""
        return self._values(OPERATORS)

    def operator(self, name: str) -> Operator:
        """Return the operator ``name``; raises `UnknownPluginError` if it is not installed."""
        return cast("Operator", self._value(OPERATORS, name))

    def storages(self) -> dict[str, type[ObjectStorage]]:
        """Return all storages by URL scheme."""
        return self._values(STORAGES)

    def storage(self, scheme: str) -> type[ObjectStorage]:
        """Return the storage of a URL scheme; raises `UnknownPluginError` if there is none."""
        return cast("type[ObjectStorage]", self._value(STORAGES, scheme))

    def commands(self) -> dict[str, click.Command]:
        """Return all sub-commands of ``forebay`` that plugins provide, by name."""
        return self._values(COMMANDS)

    def command(self, name: str) -> click.Command:
        """Return the sub-command ``name``; raises `UnknownPluginError` if it is not installed."""
        return cast("click.Command", self._value(COMMANDS, name))

    def register(self, plugin: object, name: str) -> None:
        """Add a plugin without an entry point, for tests; raises `PluginError` if it is broken."""
        with self._lock:
            source = PluginSource(Origin(name, name, ""), lambda: plugin, name)
            if (fault := source.fault()) is not None:
                raise fault.error()
            if any(other.plugin is plugin for other in self._sources()):
                raise PluginError(f"plugin {name!r}: it is already registered under another name")
            self._by_key()[source.origin.key] = source

    def installed(self) -> list[InstalledPlugin]:
        """Return a row for each plugin; imports and checks every kind of every plugin.

        Commands are left out where the command line is not installed: their imports need it.
        """
        with self._lock:
            found = {kind: self._found(kind) for kind in KINDS if _is_asked_for(kind)}
            return [_row(source.origin, found) for source in self._sources()]

    def problems(self) -> list[str]:
        """Return the problems of all plugins."""
        return [problem for plugin in self.installed() for problem in plugin.problems]

    def broken_for(self, kind: PluginKind) -> list[str]:
        """Return the distributions that cannot provide something of a kind; asks for no other."""
        with self._lock:
            faults = self._found(kind).faults
        return sorted({one.origin.distribution for one in faults})

    def _values(self, kind: PluginKind) -> dict[str, Any]:
        with self._lock:
            return {offer.name: offer.value for offer in self._found(kind).offers}

    def _value(self, kind: PluginKind, name: str) -> Any:
        with self._lock:
            own = [one for one in self._sources() if one.origin.names(kind.known.get(name))]
            for sources in (own, None) if own else (None,):
                found = self._found(kind, sources)
                for offer in found.offers:
                    if offer.name == name:
                        return offer.value
                for fault in found.faults:
                    if sources is own or fault.concerns(name):
                        raise fault.error()
            raise UnknownPluginError(_unknown(kind, name, found))

    def _found(self, kind: PluginKind, sources: Iterable[PluginSource] | None = None) -> Found:
        """Return what plugins, by default all, provide of a kind: each name once."""
        asked = [one.found(kind) for one in (self._sources() if sources is None else sources)]
        faults = [fault for found in asked for fault in found.faults]
        named: dict[str, list[Offer]] = {}
        for offer in (offer for found in asked for offer in found.offers):
            others = named.setdefault(offer.name, [])
            if all(other.value is not offer.value for other in others):
                others.append(offer)
        offers = []
        for name, several in named.items():
            usable = several if len(several) == 1 else _of_the_project(kind, name, several)
            offers += usable
            faults += (_clash(kind, offer, several) for offer in several if offer not in usable)
        return Found(offers, faults)

    def _sources(self) -> list[PluginSource]:
        return [*self._by_key().values()]

    def _by_key(self) -> dict[str, PluginSource]:
        if self._known is None:
            self._known = {}
            for source in map(source_of, self._entry_points()):
                self._known.setdefault(source.origin.key, source)
        return self._known


def _is_asked_for(kind: PluginKind) -> bool:
    """Return whether something that is installed asks for the things of a kind."""
    return not kind.asked_by or find_spec(kind.asked_by) is not None


@functools.cache
def plugins() -> Plugins:
    """Return the plugins of this process; the same object each time."""
    return Plugins()


def _of_the_project(kind: PluginKind, name: str, offers: Sequence[Offer]) -> list[Offer]:
    """Return the one of several things that has a name because the project publishes it."""
    own = [offer for offer in offers if offer.origin.names(kind.known.get(name))]
    return own if len(own) == 1 else []


def _clash(kind: PluginKind, offer: Offer, several: Sequence[Offer]) -> Fault:
    origins = " and ".join(str(one.origin) for one in several)
    text = f"two plugins provide a {kind.noun} {offer.name!r}: {origins}; uninstall one of them"
    return Fault(text, offer.origin, (offer.name,))


def _unknown(kind: PluginKind, name: str, found: Found) -> str:
    """Return the message for a name that is not there, or that a broken plugin would provide."""
    text = missing_message(kind, name, sorted(offer.name for offer in found.offers))
    return text + broken(fault.text for fault in found.faults if not fault.names)


def broken(problems: Iterable[str]) -> str:
    """Return the end of a message about a thing that is missing, if plugins are broken."""
    told = "; ".join(problems)
    return f". It may be of a plugin that is broken: {told}" if told else ""


def _row(origin: Origin, found: Mapping[PluginKind, Found]) -> InstalledPlugin:
    offers = {
        kind.noun: tuple(sorted(one.name for one in of_kind.offers if one.origin is origin))
        for kind, of_kind in found.items()
    }
    faults = [one for of_kind in found.values() for one in of_kind.faults]
    versions: set[int] = {
        one.value.contract_version
        for of_kind in found.values()
        for one in of_kind.offers
        if one.origin is origin and hasattr(one.value, "contract_version")
    }
    return InstalledPlugin(
        plugin=origin.plugin,
        distribution=origin.distribution,
        version=origin.version,
        offers={noun: names for noun, names in offers.items() if names},
        contract_versions=tuple(sorted(versions)),
        problems=tuple(dict.fromkeys(one.text for one in faults if one.origin is origin)),
    )
