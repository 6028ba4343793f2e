"""``forebay plugins`` and ``forebay config``: show installed plugins and resolved settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs
import click

from forebay_cli.options.conf import conf_options
from forebay_cli.output.report import json_option, print_json, print_table
from forebay_state_api.errors import PluginError, UnknownPluginError
from forebay_state_api.plugins import InstalledPlugin, plugins
from forebay_state_api.settings import Settings


@click.command("plugins")
@json_option
def show_plugins(*, as_json: bool) -> None:
    """Print the installed plugins: distributions, versions, and what each provides.

    What is broken is printed with the reason, and the exit status is then 1.
    """
    found = sorted(plugins().installed(), key=lambda plugin: plugin.distribution)
    if as_json:
        print_json([attrs.asdict(plugin) for plugin in found])
    else:
        rows = itertools.chain.from_iterable(map(_rows, found))
        print_table(("distribution", "version", "contract", "provides"), rows)
    if any(plugin.problems for plugin in found):
        raise click.exceptions.Exit(1)


def _rows(plugin: InstalledPlugin) -> Iterator[tuple[str, str | None, str | None, str]]:
    """Yield a row for each kind of thing that a plugin provides, and for each that is broken."""
    provides = [f"{kind}: {', '.join(names)}" for kind, names in plugin.offers.items()]
    provides += [f"BROKEN: {problem}" for problem in plugin.problems]
    versions = ", ".join(map(str, plugin.contract_versions))
    for one in provides or [""]:
        yield plugin.distribution, plugin.version or None, versions or None, one


@click.command("config")
@json_option
@conf_options
def show_config(settings: Settings, *, as_json: bool) -> None:
    """Print every setting, its value, and where the value comes from."""
    absent = _absent_default(settings)
    plugins().compaction_service(settings["compaction.service"])
    rows = settings.explain()
    if as_json:
        print_json([attrs.asdict(row) for row in rows])
    else:
        shown = [(row.key, row.value, row.source, row.doc) for row in rows]
        print_table(("setting", "value", "from", "meaning"), shown)
    if absent:
        click.echo(f"note: {absent}", err=True)


def _absent_default(settings: Settings) -> str:
    """Return a note if the default backend cannot be used and nobody chose another one."""
    try:
        plugins().backend(settings["state.backend"])
    except (UnknownPluginError, PluginError) as error:
        if not settings.is_default("state.backend"):
            raise
        return str(error)
    return ""
