"""The types of the plugin layer and of settings. Type-checked, never run.

mypy fails on an ignore that is not needed, so every ignored line has an error.
"""

from __future__ import annotations

from typing import Any, assert_type

from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.contract.compaction_service import CompactionService
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.plugins import Plugins
from forebay_state_api.settings import Settings, resolve_settings


def found(plugins: Plugins) -> None:
    assert_type(plugins.backends(), dict[str, type[StateBackend]])
    assert_type(plugins.backend("heap"), type[StateBackend])
    assert_type(plugins.compaction_service("local"), type[CompactionService])
    assert_type(plugins.storage("ftp"), type[ObjectStorage])
    plugins.backend(1)  # type: ignore[arg-type]


def in_force(plugins: Plugins) -> None:
    settings = resolve_settings({}, overrides={"batch-size": 1}, backends=plugins.backends())
    assert_type(settings, Settings)
    assert_type(settings["batch-size"], Any)
    assert_type(settings.storage_options(), dict[str, Any])
