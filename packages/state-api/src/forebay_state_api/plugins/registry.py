"""Find installed plugins: backends, compaction services, operators, storages, commands.

`plugins` returns the process's `Plugins`, a typed wrapper around pluggy with one method per hook;
the hooks themselves are in `forebay_state_api.contract.hookspecs`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs
import pluggy

from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.hookspecs import PROJECT, HookSpecs, Operator
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
    unknown,
)

if TYPE_CHECKING:
    import click

    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.compactor import Compactor
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen
class _Origin:
    """The entry point and distribution of a plugin."""

    plugin: str
    distribution: str
    version: str

    @property
    def key(self) -> str:
        """A key that distinguishes entry points with one name in two distributions."""
        return f"{self.distribution}:{self.plugin}"

    def names(self, distribution: str) -> bool:
        """Return whether this is the plugin of a distribution, however that is spelled."""
        return self.distribution.replace("_", "-").lower() == distribution

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()


@attrs.frozen
class _Offer:
    """One named thing that a plugin provides."""

    value: Any
    origin: _Origin


@attrs.frozen(kw_only=True)
class InstalledPlugin:
    """A row of ``forebay plugins``."""

    plugin: str
    """Name of the entry point."""
    distribution: str
    version: str
    """Version of the distribution; empty for a plugin that was registered by hand."""
    offers: Mapping[str, tuple[str, ...]]
    """PluginKind (``state backend``, ``command`` …) → names; only kinds that it provides."""
    contract_version: int
    """The contract version of this process, against which the plugin was checked."""


EntryPoints = Callable[[], Iterable[importlib.metadata.EntryPoint]]


def _installed_entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=PROJECT)


class Plugins:
    """The installed plugins, loaded once, at first use.

    A name that the project itself publishes is looked up in its own distribution first, so that no
    other plugin is imported for it. Every method may raise `PluginError`: when any installed plugin
    fails to import, implements a hook that does not exist, provides something without a name,
    provides a name that another plugin also provides, or has a different contract version. One
    broken plugin is an error for all, so that a typo in it is not mistaken for its absence. Methods
    may be called from any thread.
    """

    def __init__(self, entry_points: EntryPoints = _installed_entry_points) -> None:
        """Read plugins from ``entry_points``; tests pass ``tuple`` to start without any."""
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._entry_points = entry_points
        self._origins: dict[str, _Origin] = {}
        self._offers: dict[PluginKind, dict[str, _Offer]] = {}
        self._loaded = False
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

    def register(self, plugin: object, name: str) -> None:
        """Add a plugin without an entry point, for tests."""
        with self._lock:
            self._register(plugin, _Origin(name, name, ""))

    def installed(self) -> list[InstalledPlugin]:
        """Return a row for each plugin; loads and checks every kind of every plugin."""
        with self._lock:
            offered = {kind: self._offered(kind) for kind in KINDS}
            return [_row(origin, offered) for origin in self._origins.values()]

    def _values(self, kind: PluginKind) -> dict[str, Any]:
        return {name: offer.value for name, offer in self._offered(kind).items()}

    def _value(self, kind: PluginKind, name: str) -> Any:
        own = self._of_own_distribution(kind, name)
        if own is not None:
            return own.value
        offered = self._offered(kind)
        if name not in offered:
            raise UnknownPluginError(unknown(kind, name, sorted(offered)))
        return offered[name].value

    def _of_own_distribution(self, kind: PluginKind, name: str) -> _Offer | None:
        """Return what the distribution that is known for the name provides, and import no other.

        ``None`` if it is not installed, or all plugins have been asked already.
        """
        with self._lock:
            self._load()
            if kind in self._offers or name not in kind.known:
                return None
            origins = [one for one in self._origins.values() if one.names(kind.known[name])]
            if len(origins) != 1:
                return None
            return self._collect_from(kind, origins).get(name)

    def _offered(self, kind: PluginKind) -> dict[str, _Offer]:
        with self._lock:
            self._load()
            if kind not in self._offers:
                self._offers[kind] = self._collect(kind)
            return self._offers[kind]

    def _load(self) -> None:
        if self._loaded:
            return
        for entry_point in self._entry_points():
            origin = _origin_of(entry_point)
            if origin.key not in self._origins:
                self._register(_import(entry_point, origin), origin)
        self._loaded = True

    def _register(self, plugin: object, origin: _Origin) -> None:
        try:
            self._manager.register(plugin, origin.key)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as fault:
            if self._manager.has_plugin(origin.key) and origin.key not in self._origins:
                self._manager.unregister(name=origin.key)
            cause = " ".join(str(fault).split())
            raise PluginError(
                f"plugin {origin.plugin!r} of {origin} does not match the hooks: {cause}"
            ) from fault
        self._origins[origin.key] = origin
        self._offers.clear()

    def _collect(self, kind: PluginKind) -> dict[str, _Offer]:
        return self._collect_from(kind, self._origins.values())

    def _collect_from(self, kind: PluginKind, origins: Iterable[_Origin]) -> dict[str, _Offer]:
        found: dict[str, _Offer] = {}
        for origin in origins:
            for value in self._called(kind, origin):
                _check_contract(kind, value, origin)
                for name in _names(kind, value, origin):
                    _add(found, kind, name, _Offer(value, origin))
        return found

    def _called(self, kind: PluginKind, origin: _Origin) -> list[Any]:
        """Call the hook of one plugin alone, so that errors can name it."""
        plugin = self._manager.get_plugin(origin.key)
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        try:
            results = self._manager.subset_hook_caller(kind.hook, others)()
        except Exception as fault:
            raise PluginError(
                f"{kind.hook} of plugin {origin.plugin!r} ({origin}) failed: {fault!r}"
            ) from fault
        return [value for result in results for value in _flat(result)]


@functools.cache
def plugins() -> Plugins:
    """Return the plugins of this process; the same object each time."""
    return Plugins()


def _origin_of(entry_point: importlib.metadata.EntryPoint) -> _Origin:
    distribution = entry_point.dist
    if distribution is None:
        return _Origin(entry_point.name, entry_point.value, "")
    return _Origin(entry_point.name, distribution.name, distribution.version)


def _import(entry_point: importlib.metadata.EntryPoint, origin: _Origin) -> object:
    try:
        return entry_point.load()
    except Exception as fault:
        raise PluginError(
            f"plugin {origin.plugin!r} of {origin} cannot be imported "
            f"({entry_point.value}): {fault!r}; repair or uninstall {origin.distribution}"
        ) from fault


def _flat(result: Any) -> Iterable[Any]:
    return result if isinstance(result, list | tuple) else (result,)


def _names(kind: PluginKind, value: Any, origin: _Origin) -> tuple[str, ...]:
    names = getattr(value, kind.attribute, None)
    names = names if isinstance(names, tuple) else (names,)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise PluginError(
            f"{kind.hook} of {origin} returned {value!r}, which has no {kind.attribute!r}"
        )
    return names


def _check_contract(kind: PluginKind, value: Any, origin: _Origin) -> None:
    stated = getattr(value, "contract_version", None)
    if stated == CONTRACT_VERSION or (stated is None and not kind.versioned):
        return
    states = "has no contract_version" if stated is None else f"has contract version {stated}"
    raise PluginError(
        f"{value!r} of {origin} {states}; this forebay-state-api has {CONTRACT_VERSION}: "
        f"install compatible versions of {origin.distribution} and forebay-state-api"
    )


def _add(found: dict[str, _Offer], kind: PluginKind, name: str, offer: _Offer) -> None:
    other = found.setdefault(name, offer)
    if other is not offer:
        raise PluginError(
            f"two plugins provide a {kind.noun} {name!r}: {other.origin} and {offer.origin}; "
            "uninstall one of them"
        )


def _row(origin: _Origin, offered: Mapping[PluginKind, Mapping[str, _Offer]]) -> InstalledPlugin:
    offers = {
        kind.noun: tuple(sorted(n for n, offer in found.items() if offer.origin is origin))
        for kind, found in offered.items()
    }
    return InstalledPlugin(
        plugin=origin.plugin,
        distribution=origin.distribution,
        version=origin.version,
        offers={noun: names for noun, names in offers.items() if names},
        contract_version=CONTRACT_VERSION,
    )
