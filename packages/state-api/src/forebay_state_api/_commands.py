"""``forebay plugins`` and ``forebay config``: what is installed, and what is in force."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings

_KEY_AND_VALUE: Final = re.compile(r"(?P<key>[^\s=:]+)\s*[=:\s]\s*(?P<value>.*)")


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
@click.option(
    "--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting, as of spark-submit."
)
@click.option(
    "--properties-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file such as spark-defaults.conf; --conf goes over it.",
)
def show_config(conf: tuple[str, ...], properties_file: Path | None) -> None:
    """Print every setting, its value, and where the value comes from."""
    given = {} if properties_file is None else _properties(properties_file)
    given.update(_split(text) for text in conf)
    settings = resolve_settings(given, backends=_configurable())
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


def _configurable() -> Mapping[str, Any]:
    return {**plugins().compaction_services(), **plugins().backends()}


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        message = f"--conf {text!r}: expected key=value"
        raise click.UsageError(message)
    return key.strip(), value.strip()


def _properties(path: Path) -> dict[str, str]:
    """Read a file as Spark does: ``key value``, ``key=value`` or ``key: value``, # comments."""
    return dict(_lines(path.read_text(encoding="utf-8").splitlines(), path))


def _lines(lines: Iterable[str], path: Path) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith(("#", "!")):
            continue
        if (match := _KEY_AND_VALUE.fullmatch(line)) is None:
            message = f"{path}, line {number}: expected a key and a value, got {line!r}"
            raise click.UsageError(message)
        yield match["key"], match["value"]
