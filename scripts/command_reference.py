"""Fill the commands in ``docs/reference/command-line.md`` from the installed commands."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from forebay_cli.lazy import LazyCommand
from forebay_state_api.plugins import plugins
from forebay_state_api.plugins.kinds import COMMANDS

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "command-line.md"
_COMMANDS: Final = re.compile(r"(<!-- commands -->\n).*?(<!-- end -->)", re.DOTALL)
_SHARED_BY: Final = 5
"""An option that as many commands have is described once for all of them."""
_HEAD: Final = "| option | default | meaning |\n| --- | --- | --- |\n"


class Option(NamedTuple):
    """An option, as its row shows it."""

    name: str
    value: str
    """The name of its value; empty for a flag."""
    default: str
    meaning: str

    @property
    def row(self) -> str:
        """The option as a line of a table."""
        written = f"`{self.name} {self.value}`" if self.value else f"`{self.name}`"
        cells = (_cell(text) for text in (written, self.default, self.meaning))
        return f"| {' | '.join(cells)} |\n"


class Described(NamedTuple):
    """A command that can be run, with the words that name it."""

    words: str
    distribution: str
    summary: str
    arguments: str
    options: tuple[Option, ...]


def described() -> list[Described]:
    """Return all commands of the project's own packages, by the words that name them."""
    found: list[Described] = []
    for plugin in plugins().installed():
        for name in plugin.offers.get(COMMANDS.noun, ()):
            if plugin.distribution.startswith("forebay-"):
                command = plugins().command(name)
                found += _below(f"forebay {name}", command, plugin.distribution)
    return sorted(found)


def filled(page: str) -> str:
    """Return a page with its commands filled from the code."""
    text = "".join(_sections(described()))
    return _COMMANDS.sub(lambda match: f"{match[1]}{text}{match[2]}", page)


def _below(words: str, command: click.Command, distribution: str) -> Iterator[Described]:
    """Yield a command, or the commands of a group."""
    loaded = command.load() if isinstance(command, LazyCommand) else command
    if isinstance(loaded, click.Group):
        for name, part in loaded.commands.items():
            yield from _below(f"{words} {name}", part, distribution)
        return
    context = click.Context(loaded)
    summary = (loaded.help or "").partition("\n\n")[0]
    yield Described(
        words,
        distribution,
        " ".join(summary.split()),
        " ".join(one.make_metavar(context) for one in loaded.params if not _is_option(one)),
        tuple(_option(one, context) for one in loaded.params if isinstance(one, click.Option)),
    )


def _is_option(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option)


def _option(option: click.Option, context: click.Context) -> Option:
    meaning = f"{option.help or ''}{' Repeatable.' if option.multiple else ''}"
    return Option(
        ", ".join(option.opts),
        "" if option.is_flag else _value(option.make_metavar(context)),
        _default(option, context),
        meaning,
    )


def _value(metavar: str) -> str:
    """Return what click shows for a value, without the brackets round choices."""
    inside = metavar[1:-1]
    is_choice = metavar == f"[{inside}]" and not {"[", "]"} & set(inside)
    return inside if is_choice else metavar.replace(" RANGE", "")


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.get_default(context)
    known = option.show_default and default is not None
    return f"`{default}`" if known else ""


def _sections(commands: Iterable[Described]) -> Iterator[str]:
    """Yield the shared options, and then a section for each command."""
    commands = list(commands)
    uses = collections.Counter(option for command in commands for option in command.options)
    shared = {option for option, number in uses.items() if number >= _SHARED_BY}
    yield "\n### Options of several commands\n\n"
    yield _HEAD
    yield from (option.row for option in sorted(shared))
    for command in commands:
        yield from _section(command, shared)
    yield "\n"


def _section(command: Described, shared: set[Option]) -> Iterator[str]:
    yield f"\n### {command.words}\n\n"
    usage = f"{command.words} {command.arguments}".strip()
    yield f"`{usage}` ({command.distribution}): {command.summary}\n"
    if own := [option for option in command.options if option not in shared]:
        yield f"\n{_HEAD}"
        yield from (option.row for option in own)
    if others := [f"`{option.name}`" for option in command.options if option in shared]:
        yield f"\nOf several commands: {', '.join(others)}.\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
