"""One plugin: imported when it is first needed, asked for each kind of thing once.

A problem with it is kept as a `Fault`, and is raised only for callers that need the plugin, and
shown in lists of plugins.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs
import pluggy

from forebay_state_api.contract.hookspecs import PROJECT, HookSpecs
from forebay_state_api.errors import PluginError
from forebay_state_api.plugins.checks import names_of, problem_of, shown
from forebay_state_api.plugins.kinds import PluginKind


@attrs.frozen
class Origin:
    """The entry point and distribution of a plugin."""

    plugin: str
    distribution: str
    version: str

    @property
    def key(self) -> str:
        """A key that distinguishes entry points with one name in two distributions."""
        return f"{self.distribution}:{self.plugin}"

    def names(self, distribution: str | None) -> bool:
        """Return whether this is the plugin of a distribution, however that is spelled."""
        return self.distribution.replace("_", "-").lower() == distribution

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()


@attrs.frozen
class Offer:
    """One named thing that a plugin provides."""

    name: str
    value: Any
    origin: Origin


@attrs.frozen
class Fault:
    """The reason why something that a plugin provides, or all of it, cannot be used."""

    text: str
    origin: Origin
    names: tuple[str, ...] = ()
    """The names of the things; empty if they are not known."""
    cause: BaseException | None = None

    def concerns(self, name: str) -> bool:
        """Return whether this fault is known to concern the thing ``name``."""
        return name in (self.names or (self.origin.plugin,))

    def error(self) -> PluginError:
        """Return the error for callers that need the broken thing."""
        error = PluginError(self.text)
        error.__cause__ = self.cause
        return error


@attrs.frozen
class Found:
    """The things of one kind that plugins provide, and the faults of broken ones."""

    offers: Sequence[Offer] = ()
    faults: Sequence[Fault] = ()


class PluginSource:
    """A plugin and what its hooks have returned."""

    def __init__(self, origin: Origin, load: Callable[[], object], where: str) -> None:
        """``load`` imports the plugin; ``where`` is the module that it is in."""
        self.origin: Final = origin
        self.plugin: object = None
        self._load: Final = load
        self._where: Final = where
        self._manager: pluggy.PluginManager | None = None
        self._fault: Fault | None = None
        self._loading = False
        self._found: Final[dict[PluginKind, Found]] = {}

    def fault(self) -> Fault | None:
        """Import the plugin at the first call; return the fault if none of it can be used."""
        if self._manager is None and self._fault is None and not self._loading:
            self._loading = True
            try:
                self.plugin = self._imported()
                self._manager = self._managed(self.plugin)
            except PluginError as error:
                self._fault = Fault(str(error), self.origin, cause=error.__cause__)
            finally:
                self._loading = False
        return self._fault

    def found(self, kind: PluginKind) -> Found:
        """Return the things of a kind that the plugin provides; its hook is called once."""
        fault = self.fault()
        if fault is not None:
            return Found(faults=[fault])
        if self._manager is None:
            return Found()  # its own import asks
        if kind not in self._found:
            self._found[kind] = self._collected(kind, self._manager)
        return self._found[kind]

    def _imported(self) -> object:
        try:
            return self._load()
        except (Exception, SystemExit) as fault:
            raise PluginError(
                f"plugin {self.origin.plugin!r} of {self.origin} cannot be imported "
                f"({self._where}): {fault!r}; repair or uninstall {self.origin.distribution}"
            ) from fault

    def _managed(self, plugin: object) -> pluggy.PluginManager:
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(HookSpecs)
        try:
            manager.register(plugin, self.origin.key)
            manager.check_pending()
            implements = manager.get_hookcallers(plugin)
        except Exception as fault:
            raise self._mismatch_error(" ".join(str(fault).split())) from fault
        if not implements:
            raise self._mismatch_error(
                f"{shown(plugin)} ({self._where}) implements none of them. The entry point names a "
                "module, whose functions have the decorator hookimpl of forebay_state_api.plugins"
            )
        return manager

    def _mismatch_error(self, cause: str) -> PluginError:
        return PluginError(
            f"plugin {self.origin.plugin!r} of {self.origin} does not match the hooks: {cause}"
        )

    def _collected(self, kind: PluginKind, manager: pluggy.PluginManager) -> Found:
        try:
            results = getattr(manager.hook, kind.hook)()
        except (Exception, SystemExit) as fault:  # noqa: BLE001 - a hook may raise anything
            text = f"{kind.hook} of plugin {self.origin.plugin!r} ({self.origin}) failed: {fault!r}"
            return Found(faults=[Fault(text, self.origin, cause=fault)])
        offers: list[Offer] = []
        faults: list[Fault] = []
        for value in (value for result in results for value in _flat(result)):
            names = names_of(kind, value)
            if problem := problem_of(kind, value):
                text = f"{kind.hook} of plugin {self.origin.plugin!r} ({self.origin}) returned "
                faults.append(Fault(f"{text}{shown(value)}, which {problem}", self.origin, names))
            else:
                offers += (Offer(name, value, self.origin) for name in names)
        return Found(offers, faults)


def source_of(entry_point: importlib.metadata.EntryPoint) -> PluginSource:
    """Return the plugin of an entry point, without importing it."""
    distribution = entry_point.dist
    if distribution is None:
        origin = Origin(entry_point.name, entry_point.value, "")
    else:
        origin = Origin(entry_point.name, distribution.name, distribution.version)
    return PluginSource(origin, entry_point.load, entry_point.value)


def _flat(result: Any) -> Iterable[Any]:
    # Not by `isinstance`, which asks the thing itself.
    return result if issubclass(type(result), list | tuple) else (result,)
