"""Resolve settings with the installed plugins' settings."""

from __future__ import annotations

from collections.abc import Mapping

from forebay_state_api.plugins.registry import broken, plugins
from forebay_state_api.settings import Settings, resolve_settings


def resolve_with_plugins(
    given: Mapping[str, str], *, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Resolve settings as `resolve_settings` does, with the settings of backends and services.

    The error for an unknown setting names the plugins that are broken: it may be theirs.
    """
    known = plugins()
    return resolve_settings(
        given,
        overrides=overrides,
        backends=known.backends(),
        services=known.compaction_services(),
        absent=lambda: broken(known.problems()),
    )
