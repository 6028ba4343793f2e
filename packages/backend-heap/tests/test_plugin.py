"""The package's plugin, and its settings."""

from __future__ import annotations

import pytest

from forebay_backend_heap import HeapBackend, plugin
from forebay_backend_heap.options import HeapOptions
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.backend import Capability
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import Plugins
from forebay_state_api.settings import options_from, resolve_settings


def test_the_plugin_gives_the_backend():
    plugins = Plugins(tuple)
    plugins.register(plugin, "heap")
    assert plugins.backend("heap") is HeapBackend
    assert HeapBackend.contract_version == CONTRACT_VERSION
    assert Capability.RESIDENT in HeapBackend.capabilities


def test_settings_reach_the_backend_typed():
    given = {"spark.forebay.heap.max-deltas": "7"}
    settings = resolve_settings(given, backends={"heap": HeapBackend})
    options = options_from(HeapOptions, settings.backend_options())
    assert options == HeapOptions(max_deltas=7, snapshot_factor=3.0)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("max-deltas", "1", "at least"), ("snapshot-factor", "2", "no setting")],
)
def test_settings_are_checked(name, value, words):
    with pytest.raises(ConfigurationError, match=words):
        resolve_settings({f"spark.forebay.heap.{name}": value}, backends={"heap": HeapBackend})
