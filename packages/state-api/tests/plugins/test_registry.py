"""The plugin layer: the result of each hook, and every way in which a plugin can be wrong."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest

from forebay_state_api import builtin_plugin
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.contract.compaction_service import CompactionService
from forebay_state_api.contract.hookspecs import HookSpecs
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError, PluginError, UnknownPluginError
from forebay_state_api.plugins import Plugins, hookimpl, plugins, registry

BASES = {
    "forebay_state_backends": StateBackend,
    "forebay_compaction_services": CompactionService,
    "forebay_storages": ObjectStorage,
}
"""Hook → the class from which the classes that it gives derive."""


def named(name: str, hook: str = "forebay_state_backends", **extra: Any) -> Any:
    """A class, as the hook gives it."""
    base = BASES.get(hook, object)
    done = dict.fromkeys(getattr(base, "__abstractmethods__", ()), lambda *_: None)
    own = {"contract_version": CONTRACT_VERSION, "name": name, "schemes": (name,), **extra}
    return type(name.title(), (base,), {**done, **own})


def compactor_of(format_: str, **extra: Any) -> Any:
    """A compactor."""
    own = {"contract_version": CONTRACT_VERSION, "compact": lambda *_: None, **extra}
    return SimpleNamespace(format=format_, **own)


def plugin_with(hook: str, implementation: Any) -> ModuleType:
    """A plugin, as a module, that implements one hook."""
    plugin = ModuleType("acme_forebay")
    setattr(plugin, hook, hookimpl(implementation))
    return plugin


def giving(hook: str, *values: Any) -> ModuleType:
    """A plugin whose only hook gives these values."""
    return plugin_with(hook, lambda: values[0] if len(values) == 1 else list(values))


class Entry:
    """An entry point of a distribution that need not be installed."""

    def __init__(self, plugin: object, distribution: str = "acme", name: str = "acme") -> None:
        self.name = name
        self.value = f"{distribution}.plugin"
        self.dist = SimpleNamespace(name=distribution, version="1.2")
        self.plugin = plugin
        self.loads = 0

    def load(self) -> object:
        self.loads += 1
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


def installed(*entries: Entry) -> Plugins:
    return Plugins(lambda: entries)


def test_every_hook_has_a_test() -> None:
    hooks = {name for name, _ in inspect.getmembers(HookSpecs, inspect.isfunction)}
    tested = {name.removeprefix("test_hook_") for name in globals() if "test_hook_" in name}
    assert hooks
    assert hooks == tested


def test_hook_forebay_state_backends() -> None:
    heap, lsm = named("heap"), named("lsm")
    found = installed(Entry(giving("forebay_state_backends", heap, lsm)))
    assert found.backends() == {"heap": heap, "lsm": lsm}
    assert found.backend("lsm") is lsm


def test_hook_forebay_compaction_services() -> None:
    remote = named("remote", "forebay_compaction_services")
    found = installed(Entry(giving("forebay_compaction_services", remote)))
    assert found.compaction_services() == {"remote": remote}
    assert found.compaction_service("remote") is remote


def test_hook_forebay_compactors() -> None:
    compactor = compactor_of("acme-1")
    found = installed(Entry(giving("forebay_compactors", compactor)))
    assert found.compactors() == {"acme-1": compactor}
    assert found.compactor("acme-1") is compactor


def test_hook_forebay_operators() -> None:
    operator = SimpleNamespace(name="sessions", contract_version=CONTRACT_VERSION)
    found = installed(Entry(giving("forebay_operators", operator)))
    assert found.operators() == {"sessions": operator}
    assert found.operator("sessions") is operator


def test_hook_forebay_storages() -> None:
    storage = named("ftp", "forebay_storages", schemes=("ftp", "sftp"))
    found = installed(Entry(giving("forebay_storages", storage)))
    assert found.storages() == {"ftp": storage, "sftp": storage}
    assert found.storage("sftp") is storage


def test_hook_forebay_commands() -> None:
    command = click.Command("inspect")
    found = installed(Entry(giving("forebay_commands", (command,))))
    assert found.commands() == {"inspect": command}


def test_a_hook_may_give_nothing() -> None:
    found = installed(Entry(giving("forebay_state_backends", None)))
    assert found.backends() == {}


def test_entry_points_are_loaded_once_and_only_when_asked() -> None:
    entry = Entry(giving("forebay_state_backends", named("heap")))
    found = installed(entry)
    assert entry.loads == 0
    threads = [threading.Thread(target=found.backends) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found.commands(), entry.loads) == ({}, 1)


def test_a_registered_plugin_is_found_also_after_the_first_look() -> None:
    found = installed()
    assert found.backends() == {}
    toy = giving("forebay_state_backends", named("toy"))
    found.register(toy, "toy")
    assert set(found.backends()) == {"toy"}
    with pytest.raises(PluginError, match="already registered"):
        found.register(toy, "again")


def test_an_unknown_name_lists_what_is_installed_and_what_may_be_meant() -> None:
    found = installed(Entry(giving("forebay_state_backends", named("heap"), named("rocks"))))
    with pytest.raises(UnknownPluginError, match=r"'heep'; installed: heap, rocks .*mean 'heap'"):
        found.backend("heep")
    assert issubclass(UnknownPluginError, ConfigurationError)


@pytest.mark.parametrize(
    ("find", "line"),
    [
        (lambda p: p.backend("acme"), "installed: none - install the distribution that brings it"),
        (lambda p: p.backend("lms"), "did you mean 'lsm'?"),
        (lambda p: p.compaction_service("rya"), "did you mean 'ray'?"),
        (lambda p: p.storage("ftp"), "installed: abfs, abfss,"),
        (lambda p: p.storage("s3x"), "did you mean 's3'?"),
    ],
)
def test_no_distribution_is_made_up_that_anyone_could_have_registered(find: Any, line: str) -> None:
    with pytest.raises(UnknownPluginError) as caught:
        find(installed(Entry(giving("forebay_storages", *builtin_plugin.forebay_storages()))))
    assert line in str(caught.value)
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize(
    ("find", "line"),
    [
        (lambda p: p.backend("heap"), "pip install forebay-backend-heap"),
        (lambda p: p.backend("lsm"), "pip install forebay-backend-lsm"),
        (lambda p: p.compaction_service("ray"), "pip install forebay-compaction-ray"),
        (lambda p: p.compactor("lsm"), "pip install forebay-backend-lsm"),
        (lambda p: p.operator("ordered_wait"), "pip install forebay-spark-runtime"),
    ],
)
def test_an_absent_plugin_names_the_line_that_installs_it(find: Any, line: str) -> None:
    with pytest.raises(UnknownPluginError, match=f"installed: none.*{line}") as caught:
        find(installed())
    assert "did you mean" not in str(caught.value)


def test_a_command_states_no_contract_version() -> None:
    command = click.Command("inspect")
    assert not hasattr(command, "contract_version")
    assert installed(Entry(giving("forebay_commands", command))).commands() == {"inspect": command}


def test_installed_tells_what_each_plugin_gives() -> None:
    entries = [
        Entry(giving("forebay_state_backends", named("heap"), named("rocks"))),
        Entry(giving("forebay_commands", click.Command("inspect")), "bolt"),
    ]
    acme, bolt = installed(*entries).installed()
    assert (acme.distribution, acme.version, acme.plugin) == ("acme", "1.2", "acme")
    assert acme.offers == {"state backend": ("heap", "rocks")}
    assert (acme.contract_versions, bolt.contract_versions) == ((CONTRACT_VERSION,), ())
    assert bolt.offers == {"command": ("inspect",)}


def test_a_hook_with_foreign_arguments_is_refused_by_hand() -> None:
    def forebay_commands(context: object) -> object:
        return context

    plugin = plugin_with("forebay_commands", forebay_commands)
    found = installed()
    with pytest.raises(PluginError, match=r"acme.*context"):
        found.register(plugin, "acme")
    assert found.commands() == {}


def test_hooks_are_called_once() -> None:
    calls: list[str] = []

    def forebay_state_backends() -> Any:
        calls.append("called")
        return named("heap")

    found = installed(
        Entry(plugin_with("forebay_state_backends", forebay_state_backends), "forebay-backend-heap")
    )
    assert found.backend("heap") is found.backend("heap") is found.backends()["heap"]
    found.installed()
    assert calls == ["called"]


def test_for_a_name_of_the_project_no_other_plugin_is_imported() -> None:
    own = Entry(giving("forebay_state_backends", named("heap")), "forebay-backend-heap")
    other = Entry(giving("forebay_state_backends", named("acme")))
    found = installed(other, own)
    assert found.backend("heap").name == "heap"
    assert (own.loads, other.loads) == (1, 0)


def test_a_real_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    module = giving("forebay_state_backends", named("acme"))
    monkeypatch.setitem(sys.modules, "acme_forebay", module)
    entry = importlib.metadata.EntryPoint("acme", "acme_forebay", "forebay")
    assert set(Plugins(lambda: [entry]).backends()) == {"acme"}


def test_state_api_gives_storages_and_nothing_else() -> None:
    found = installed(Entry(builtin_plugin))
    assert {"file", "memory", "s3", "gs", "az", "hdfs"} <= set(found.storages())
    assert not found.compaction_services()
    assert not found.commands()


def test_the_process_has_one_instance() -> None:
    assert plugins() is plugins()


def test_commands_are_not_asked_for_without_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = ModuleType("acme")

    def commands() -> None:
        raise ModuleNotFoundError("No module named 'forebay_cli'")

    vars(plugin)["forebay_commands"] = hookimpl(commands)
    found = installed(Entry(plugin))
    assert len(found.problems()) == 1
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    assert found.problems() == []
    assert [row.offers for row in found.installed()] == [{}]
