"""Find installed plugins: backends, services, compactors, operators, storages, commands.

Authors of plugins import `hookimpl` from here, which loads little else; other modules look things
up by name in `plugins`.
"""

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_state_api.contract.hookspecs import hookimpl as hookimpl
    from forebay_state_api.plugins.registry import (
        InstalledPlugin as InstalledPlugin,
        Plugins as Plugins,
        plugins as plugins,
    )
