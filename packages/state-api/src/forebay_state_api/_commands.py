"""``forebay plugins`` and ``forebay config``: what is installed, and what is in force."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from forebay_state_api._conf_options import conf_options, settings_of
from forebay_state_api.plugins import plugins


@click.command("plugins")
def show_plugins() -> None:
    """Print what is installed: distributions, versions, and what each gives."""
    table = _table("distribution", "version", "contract", "gives")
    for plugin in sorted(plugins().installed(), key=lambda found: found.distribution):
        gives = [f"{kind}: {', '.join(names)}" for kind, names in plugin.offers.items()]
        table.add_row(
            plugin.distribution,
            plugin.version or "-",
            str(plugin.contract_version),
            "\n".join(gives) or "-",
        )
    Console().print(table)


@click.command("config")
@conf_options
def show_config(conf: tuple[str, ...], properties_file: Path | None) -> None:
    """Print every setting, its value, and where the value comes from."""
    settings = settings_of(conf, properties_file)
    plugins().backend(settings["state.backend"])
    plugins().compaction_service(settings["compaction.service"])
    table = _table("setting", "value", "from", "meaning")
    for row in settings.explain():
        table.add_row(row.key, row.value, row.source, row.doc)
    Console().print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    first, *others = columns
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, overflow="fold")
    return table
