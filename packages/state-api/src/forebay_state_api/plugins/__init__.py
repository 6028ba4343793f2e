"""Finds what is installed: backends, services, compactors, operators, storages, commands.

Authors of plugins take `hookimpl` from here; everything else asks `plugins` for things by name.
"""

from forebay_state_api.contract.hookspecs import hookimpl, hookspec
from forebay_state_api.plugins.registry import InstalledPlugin, Plugins, plugins

__all__ = ["InstalledPlugin", "Plugins", "hookimpl", "hookspec", "plugins"]
