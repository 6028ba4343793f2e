"""What the package offers to the plugin layer, and its settings."""

from __future__ import annotations

import pytest

from forebay_backend_heap import HeapBackend, plugin
from forebay_backend_heap.options import HeapOptions
from forebay_state_api.backend import CONTRACT_VERSION, Capability
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import Plugins
from forebay_state_api.settings import resolve_settings


def test_the_plugin_gives_the_backend():
    plugins = Plugins(tuple)
    plugins.register(plugin, "heap")
    assert plugins.backend("heap") is HeapBackend
    assert HeapBackend.contract_version == CONTRACT_VERSION
    assert Capability.RESIDENT in HeapBackend.capabilities
    assert Capability.EXPORT in HeapBackend.capabilities


def test_settings_reach_the_backend_typed():
    given = {"spark.forebay.heap.max-deltas": "7"}
    settings = resolve_settings(given, backends={"heap": HeapBackend})
    options = HeapOptions.of(settings.backend_options())
    assert options == HeapOptions(max_deltas=7, snapshot_factor=3.0)
    assert HeapOptions.of({}) == HeapOptions(max_deltas=32, snapshot_factor=3.0)


@pytest.mark.parametrize("given", [{"max-deltas": "1"}, {"snapshot-factor": "-1"}])
def test_settings_are_checked(given):
    given = {f"spark.forebay.heap.{name}": value for name, value in given.items()}
    with pytest.raises(ConfigurationError, match="at least"):
        resolve_settings(given, backends={"heap": HeapBackend})
