"""The settings of Forebay: their types, and how `spark.forebay.*` becomes values.

Authors of plugins declare their settings with `option` or `Setting`; runtimes and commands resolve
the users' settings.
"""

from forebay_state_api.settings.engine_overrides import EngineOverrides
from forebay_state_api.settings.resolve import (
    CORE,
    MOST_RETENTION,
    PREFIX,
    RETRY_BUDGET,
    EngineSettings,
    Setting,
    SettingRow,
    Settings,
    is_of_plugin,
    option,
    options_from,
    resolve_settings,
    settings_of,
)
from forebay_state_api.settings.value_types import (
    BYTES,
    DURATION,
    LOCATION,
    LONGEST_S,
    SettingType,
    one_of,
)

__all__ = [
    "BYTES",
    "CORE",
    "DURATION",
    "LOCATION",
    "LONGEST_S",
    "MOST_RETENTION",
    "PREFIX",
    "RETRY_BUDGET",
    "EngineOverrides",
    "EngineSettings",
    "Setting",
    "SettingRow",
    "SettingType",
    "Settings",
    "is_of_plugin",
    "one_of",
    "option",
    "options_from",
    "resolve_settings",
    "settings_of",
]
