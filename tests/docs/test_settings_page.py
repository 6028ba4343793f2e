"""The page of settings has exactly the settings that exist, with their defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from forebay_state_api.plugins import plugins
from forebay_state_api.settings import CORE, PREFIX, Setting

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def settings() -> Iterator[Setting]:
    yield from CORE
    for backend in ("heap", "lsm"):
        for name, setting in plugins().backend(backend).options.items():
            yield attrs.evolve(setting, name=f"{backend}.{name}")
    remote = plugins().compaction_service("ray")
    for name, setting in remote.options.items():
        yield attrs.evolve(setting, name=f"{remote.options_prefix}.{name}")


def line(setting: Setting) -> str:
    default = "" if setting.default is None else f"`{str(setting.default).lower()}`"
    return f"| `{PREFIX}{setting.name}` | {default} | {setting.type.expected} | {setting.doc} |"


def test_the_table_is_that_of_the_code():
    wanted = [line(setting) for setting in settings()]
    found = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if f"`{PREFIX}" in row]
    assert [row for row in found if row.startswith("|")] == wanted, "\n".join(wanted)
