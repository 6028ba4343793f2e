"""Pages have exactly the settings and limits that exist, with their defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from forebay_compaction_ray.declaring import declarations
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import CORE, PREFIX, Setting

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


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


def rows(page: str, start: str) -> list[str]:
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    return [row for row in lines if row.startswith(start)]


def test_the_table_of_settings_is_that_of_the_code():
    wanted = [line(setting) for setting in settings()]
    assert rows("settings.md", f"| `{PREFIX}") == wanted, "\n".join(wanted)


def test_the_table_of_limits_is_that_of_the_code():
    limits = declarations(GatewayLimits).values()
    wanted = [f"| `--{limit.name}` | `{limit.default}` | {limit.doc} |" for limit in limits]
    assert rows("command-line.md", "| `--") == wanted, "\n".join(wanted)
