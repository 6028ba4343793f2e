"""The operator and the version that a command of ``forebay state`` reads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs
import click

from forebay_cli.options.operators import operator_options
from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_state_processor.reading.history_positions import START, Position
from forebay_state_processor.reading.snapshot import Snapshot, snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, version_named

T = TypeVar("T")

NEWEST: Final = "the newest final version"
"""The default of options that choose a version."""


@attrs.frozen(kw_only=True)
class StateSource:
    """An operator, and which of its versions and data are shown."""

    read: OperatorSource
    provisional: bool
    show_expired: bool

    def choose(self, version: str | None) -> ShownVersion:
        """Return a version: a number, ``<number>@<run>``, a savepoint, or the newest one."""
        if version is not None and "@" in version:
            position = Position.parse(version)
            return self.read.choose(position.version, run=position.run)
        named = None if version is None else version_named(version)
        return self.read.choose(named, provisional=self.provisional)

    def choose_from_start(self, version: str | None) -> ShownVersion:
        """Return a version; 0 is the empty version before the first micro-batch."""
        return ShownVersion(START.at, final=True) if version == "0" else self.choose(version)

    def open(self, version: str | None) -> Snapshot:
        """Pin a version."""
        open_ = functools.partial(snapshot_of, self.read, show_expired=self.show_expired)
        if version is None:
            return self.read.opened(open_, provisional=self.provisional)
        return open_(self.choose(version))


provisional_option: Final = click.option(
    "--provisional",
    is_flag=True,
    help="Show versions that a replay of their batch may replace, too.",
)


def state_source(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that name an operator; the command receives ``source``."""

    @operator_options
    @provisional_option
    @click.option(
        "--show-expired", is_flag=True, help="Show what has expired at the version's time."
    )
    @functools.wraps(command)
    def with_source(
        *args: Any, read: OperatorSource, provisional: bool, show_expired: bool, **given: Any
    ) -> T:
        source = StateSource(read=read, provisional=provisional, show_expired=show_expired)
        return command(*args, source=source, **given)

    return with_source


version_option: Final = click.option(
    "--version", metavar="N|N@RUN|SAVEPOINT", help="The version.", show_default=NEWEST
)
namespace_option: Final = click.option(
    "--namespace", help="The namespace.", show_default="the default one"
)
