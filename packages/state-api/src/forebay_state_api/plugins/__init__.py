"""Find installed plugins: backends, services, compactors, operators, storages, commands.

Authors of plugins import `hookimpl` from here; other modules look things up by name in `plugins`.
"""

from forebay_state_api.contract.hookspecs import hookimpl
from forebay_state_api.plugins.registry import InstalledPlugin, Plugins, plugins

__all__ = ["InstalledPlugin", "Plugins", "hookimpl", "plugins"]
