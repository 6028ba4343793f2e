"""A plugin that is broken, in any way and of any kind, harms only those who use it."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest

from forebay_engine import configuring
from forebay_state_api.contract import CONTRACT_VERSION, SERVED_VERSIONS
from forebay_state_api.errors import PluginError, UnknownPluginError
from forebay_state_api.plugins import Plugins, checks, hookimpl, kinds
from forebay_state_api.plugins.kinds import KINDS, PluginKind
from forebay_state_api.settings import Setting
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.compaction import ImmediateCompaction
from forebay_testing.reference import ReferenceBackend

OWN = {"contract_version": CONTRACT_VERSION}


def backend(name: str = "acme", **own: Any) -> Any:
    return type("Acme", (ReferenceBackend,), {"name": name, **OWN, **own})


def service(name: str = "acme", **own: Any) -> Any:
    return type("Acme", (ImmediateCompaction,), {"name": name, **OWN, **own})


def storage(name: str = "acme", **own: Any) -> Any:
    return type("Acme", (MemoryStorage,), {"schemes": (name,), **OWN, **own})


def compactor(name: str = "acme", **own: Any) -> Any:
    return SimpleNamespace(**{"format": name, "compact": lambda *_: None, **OWN, **own})


def operator(name: str = "acme", **own: Any) -> Any:
    return type("Acme", (), {"name": name, **OWN, **own})


def command(name: str = "acme") -> Any:
    return click.Command(name)


MAKERS: dict[PluginKind, Any] = {
    kinds.BACKENDS: backend,
    kinds.SERVICES: service,
    kinds.STORAGES: storage,
    kinds.COMPACTORS: compactor,
    kinds.OPERATORS: operator,
    kinds.COMMANDS: command,
}
CLASSES = [kinds.BACKENDS, kinds.SERVICES, kinds.STORAGES]
VERSIONED = [kind for kind in KINDS if kind.versioned]

FINDERS: dict[PluginKind, Any] = {
    kinds.BACKENDS: Plugins.backend,
    kinds.SERVICES: Plugins.compaction_service,
    kinds.STORAGES: Plugins.storage,
    kinds.COMPACTORS: Plugins.compactor,
    kinds.OPERATORS: Plugins.operator,
    kinds.COMMANDS: Plugins.command,
}
ALL: dict[PluginKind, Any] = {
    kinds.BACKENDS: Plugins.backends,
    kinds.SERVICES: Plugins.compaction_services,
    kinds.STORAGES: Plugins.storages,
    kinds.COMPACTORS: Plugins.compactors,
    kinds.OPERATORS: Plugins.operators,
    kinds.COMMANDS: Plugins.commands,
}


class Entry:
    """An entry point; ``plugin`` is what its module is, or the error of its import."""

    def __init__(self, plugin: object, name: str = "acme") -> None:
        self.name, self.value = name, f"{name}.plugin"
        self.dist = SimpleNamespace(name=f"dist-{name}", version="1.2")
        self.plugin = plugin

    def load(self) -> object:
        if isinstance(self.plugin, BaseException):
            raise self.plugin
        return self.plugin


def module(kind: PluginKind, result: Any) -> ModuleType:
    """A plugin whose hook of a kind returns ``result``, or raises it."""

    def hook() -> Any:
        if issubclass(type(result), BaseException):
            raise result
        return result

    plugin = ModuleType("acme")
    vars(plugin)[kind.hook] = hookimpl(hook)
    return plugin


def sound() -> ModuleType:
    """A plugin with a thing of each kind, all of the name ``good``."""
    plugin = ModuleType("good")
    for kind, make in MAKERS.items():
        vars(plugin).update(vars(module(kind, make("good"))) | {"__name__": "good"})
    return plugin


def beside(broken: object) -> Plugins:
    """The plugins of a process that has a sound one and a broken one, ``acme``."""
    return Plugins(lambda: [Entry(broken), Entry(sound(), "good")])


def assert_harmless(found: Plugins, says: str, *, asked: PluginKind | None = None) -> None:
    """All of the other plugin can be used; who asks for ``acme`` gets the reason."""
    for kind in KINDS:
        assert set(ALL[kind](found)) == {"good"}, kind.noun
        assert FINDERS[kind](found, "good") is ALL[kind](found)["good"]
        if asked in (kind, None):
            with pytest.raises(PluginError, match=says):
                FINDERS[kind](found, "acme")
        else:
            with pytest.raises(UnknownPluginError):
                FINDERS[kind](found, "acme")
    acme, good = found.installed()
    assert (acme.plugin, acme.offers, len(acme.problems)) == ("acme", {}, 1)
    assert says.replace("\\", "") in acme.problems[0]
    assert (good.problems, len(good.offers)) == ((), len(KINDS))
    assert found.problems() == list(acme.problems)


def test_the_sound_things_of_this_module_are_sound() -> None:
    found = Plugins(lambda: [Entry(sound(), "good")])
    assert [one.problems for one in found.installed()] == [()]


# -- the whole plugin -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ImportError("no module lost"), SyntaxError("lost"), SystemExit("lost")]
)
def test_a_plugin_that_cannot_be_imported(error: BaseException) -> None:
    assert_harmless(beside(error), "cannot be imported")


def test_an_entry_point_whose_module_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sound_forebay", sound())
    entries = [
        importlib.metadata.EntryPoint("acme", "lost_forebay:plugin", "forebay"),
        importlib.metadata.EntryPoint("good", "sound_forebay", "forebay"),
    ]
    assert_harmless(Plugins(lambda: entries), "No module named")


@pytest.mark.parametrize(
    "plugin",
    [ModuleType("empty"), "acme", 7, None, [], dict, object()],
    ids=["empty module", "text", "number", "none", "list", "class", "object"],
)
def test_an_entry_point_that_is_no_module_with_hooks(plugin: object) -> None:
    assert_harmless(beside(plugin), "does not match the hooks")


def test_a_misspelt_hook() -> None:
    plugin = module(kinds.BACKENDS, backend())
    vars(plugin)["forebay_backend"] = hookimpl(backend)
    assert_harmless(beside(plugin), "forebay_backend")


def test_a_hook_with_arguments_that_do_not_exist() -> None:
    plugin = ModuleType("acme")
    vars(plugin)["forebay_commands"] = hookimpl(lambda context: context)
    assert_harmless(beside(plugin), "context")


def test_an_unknown_name_tells_of_plugins_that_may_have_it() -> None:
    with pytest.raises(UnknownPluginError, match=r"no state backend 'other'.*no module lost"):
        beside(ImportError("no module lost")).backend("other")


def test_a_plugin_that_asks_for_plugins_while_it_is_imported() -> None:
    asked: list[Any] = []

    class Curious(Entry):
        def load(self) -> object:
            asked.append(found.backends())
            return super().load()

    found = Plugins(lambda: [Curious(module(kinds.BACKENDS, backend())), Entry(sound(), "good")])
    assert set(found.backends()) == {"acme", "good"}
    assert [set(one) for one in asked] == [{"good"}]


# -- one hook, one thing --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
@pytest.mark.parametrize("error", [RuntimeError("lost"), SystemExit("lost")])
def test_a_hook_that_raises(kind: PluginKind, error: BaseException) -> None:
    assert_harmless(beside(module(kind, error)), "failed", asked=kind)


class RaisesAtEverything:
    """Rubbish of the worst kind."""

    error: type[BaseException] = ValueError

    def __getattribute__(self, name: str) -> Any:
        raise type(self).error(name)

    def __repr__(self) -> str:
        raise ValueError


class ExitsAtEverything(RaisesAtEverything):
    error = SystemExit


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
@pytest.mark.parametrize(
    "rubbish",
    [7, "acme", {"acme": 1}, [None], [[]], object, RaisesAtEverything, ExitsAtEverything],
    ids=["number", "text", "dict", "none", "list", "object", "raises", "exits"],
)
def test_a_hook_that_returns_rubbish(kind: PluginKind, rubbish: Any) -> None:
    result = rubbish() if isinstance(rubbish, type) else rubbish
    assert_harmless(beside(module(kind, result)), "returned", asked=kind)


@pytest.mark.parametrize("kind", VERSIONED, ids=lambda kind: kind.noun)
@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (99, "has contract version 99; this forebay-state-api serves 2: install a newer forebay-"),
        (1, "has contract version 1; this forebay-state-api serves 2: install a newer release of"),
        ("2", "has contract version '2', which is no whole number"),
        ([2], r"has contract version \[2\], which is no whole number"),
        (None, "has no contract_version; this forebay-state-api serves 2: declare"),
    ],
)
def test_a_contract_version_that_is_not_served(kind: PluginKind, stated: Any, says: str) -> None:
    thing = MAKERS[kind](contract_version=stated)
    assert_harmless(beside(module(kind, thing)), says, asked=kind)


@pytest.mark.parametrize("kind", VERSIONED, ids=lambda kind: kind.noun)
def test_all_contract_versions_that_are_served(
    kind: PluginKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "SERVED_VERSIONS", frozenset({CONTRACT_VERSION, 3}))
    things = [MAKERS[kind]("older"), MAKERS[kind]("newer", contract_version=3)]
    things += [MAKERS[kind]("future", contract_version=4)]
    found = beside(module(kind, things))
    assert set(ALL[kind](found)) >= {"older", "newer"}
    with pytest.raises(PluginError, match="version 4; this forebay-state-api serves 2 and 3"):
        FINDERS[kind](found, "future")
    acme, _ = found.installed()
    assert (acme.contract_versions, len(acme.problems)) == ((2, 3), 1)


def test_this_version_is_served() -> None:
    assert max(SERVED_VERSIONS) == CONTRACT_VERSION


@pytest.mark.parametrize("kind", [*CLASSES, kinds.OPERATORS], ids=lambda kind: kind.noun)
def test_a_contract_version_that_is_inherited(kind: PluginKind) -> None:
    parent = MAKERS[kind]()
    thing = type("Derived", (parent,), {})
    assert_harmless(beside(module(kind, thing)), "inherits its contract_version", asked=kind)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.noun)
def test_an_abstract_class(kind: PluginKind) -> None:
    concrete = MAKERS[kind]()
    base = kind.contract.partition(":")[2]
    (contract,) = [one for one in concrete.__mro__ if one.__name__ == base]
    own = {"name": "acme", "schemes": ("acme",), **OWN}
    thing = type("Acme", (contract,), own)
    assert_harmless(beside(module(kind, thing)), "is abstract: it does not impl", asked=kind)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.noun)
def test_an_object_in_place_of_a_class_and_a_class_of_something_else(kind: PluginKind) -> None:
    thing = SimpleNamespace(name="acme", schemes=("acme",), **OWN)
    assert_harmless(beside(module(kind, thing)), "is no class", asked=kind)
    thing = type("Acme", (), {"name": "acme", "schemes": ("acme",), **OWN})
    assert_harmless(beside(module(kind, thing)), "which is no ", asked=kind)


def test_a_class_in_place_of_a_compactor_and_one_that_does_not_compact() -> None:
    own = {"format": "acme", "compact": lambda *_: None, **OWN}
    compacts: Any = kinds.COMPACTORS
    assert_harmless(beside(module(compacts, type("A", (), own))), "is a class", asked=compacts)
    thing = compactor(compact=None)
    assert_harmless(beside(module(compacts, thing)), "has no method 'compact'", asked=compacts)


@pytest.mark.parametrize("name", ["Acme", "a b", "", None, 7, "a/b"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_a_name_that_cannot_be_one(kind: PluginKind, name: Any) -> None:
    found = beside(module(kind, MAKERS[kind](name)))
    assert set(ALL[kind](found)) == {"good"}
    with pytest.raises((PluginError, UnknownPluginError), match=kind.attribute):
        FINDERS[kind](found, str(name))
    assert [len(row.problems) for row in found.installed()] == [1, 0]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if not kind.several], ids=lambda kind: kind.noun
)
def test_a_name_with_a_comma_behind_it(kind: PluginKind) -> None:
    thing = MAKERS[kind](("acme",))
    says = rf"has the {kind.attribute} \('acme',\): names are"
    assert_harmless(beside(module(kind, thing)), says, asked=kind)


NO_NUMBER = {"size": Setting("size", int, "many", "A size.")}


@pytest.mark.parametrize("kind", [kinds.BACKENDS, kinds.SERVICES], ids=lambda kind: kind.noun)
@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"options": ["size"]}, "has options that are no mapping"),
        ({"options": {"size": 7}}, "has an option 'size' that is no Setting"),
        ({"options": NO_NUMBER}, "cannot be examined"),
    ],
)
def test_options_that_no_job_could_resolve(kind: PluginKind, own: Any, says: str) -> None:
    found = beside(module(kind, MAKERS[kind](**own)))
    assert_harmless(found, says, asked=kind)


def test_options_of_a_service_that_every_job_would_meet() -> None:
    dir_ = {"dir": Setting("dir", str, "", "A place.")}
    thing = service(options=dir_, options_prefix="state")
    says = "has an option that is a setting of Forebay's own: state.dir"
    assert_harmless(beside(module(kinds.SERVICES, thing)), says, asked=kinds.SERVICES)
    thing = service(required_option="lost")
    says = "requires an option that it does not have"
    assert_harmless(beside(module(kinds.SERVICES, thing)), says, asked=kinds.SERVICES)


def test_the_rest_of_a_plugin_is_found() -> None:
    things = [backend("one"), backend("two", contract_version=99)]
    found = beside(module(kinds.BACKENDS, things))
    assert set(found.backends()) == {"good", "one"}
    with pytest.raises(PluginError, match="99"):
        found.backend("two")
    acme, _ = found.installed()
    assert (acme.offers, len(acme.problems)) == ({"state backend": ("one",)}, 1)


# -- names that clash -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_two_things_of_one_name(kind: PluginKind) -> None:
    make = MAKERS[kind]
    entries = [
        Entry(module(kind, [make(), make("one")]), "first"),
        Entry(module(kind, [make(), make("two")]), "second"),
        Entry(sound(), "good"),
    ]
    found = Plugins(lambda: entries)
    assert set(ALL[kind](found)) == {"good", "one", "two"}
    says = "'acme': dist-first 1.2 and dist-second 1.2; uninstall one of them"
    with pytest.raises(PluginError, match=says):
        FINDERS[kind](found, "acme")
    assert [len(row.problems) for row in found.installed()] == [1, 1, 0]


def test_a_name_of_the_project_is_its_own_whoever_takes_it() -> None:
    own, other = (
        Entry(module(kinds.BACKENDS, backend("heap"))),
        Entry(module(kinds.BACKENDS, backend("heap")), "other"),
    )
    own.dist.name = "forebay-backend-heap"
    found = Plugins(lambda: [other, own])
    assert found.backend("heap") is found.backends()["heap"]
    rows = {row.distribution: row for row in found.installed()}
    assert rows["forebay-backend-heap"].problems == ()
    assert "two plugins provide a state backend 'heap'" in rows["dist-other"].problems[0]


def test_a_broken_distribution_of_the_project_is_not_taken_for_an_absent_one() -> None:
    own = Entry(ImportError("lost"))
    own.dist.name = "forebay-backend-heap"
    with pytest.raises(PluginError, match="lost"):
        Plugins(lambda: [own]).backend("heap")


# -- settings -------------------------------------------------------------------------------------


def test_settings_of_other_plugins_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    found = beside(ImportError("no module lost"))
    monkeypatch.setattr(configuring, "plugins", lambda: found)
    given = {"spark.forebay.state.backend": "good"}
    assert configuring.resolve_with_plugins(given)["state.backend"] == "good"
    with pytest.raises(Exception, match=r"no setting spark.*no module lost") as raised:
        configuring.resolve_with_plugins({"spark.forebay.acme.size": "1"})
    assert "acme.plugin" in str(raised.value)
