"""``--key-groups A..B`` of commands: a range of key groups."""

from __future__ import annotations

from typing import Final

import click

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange


def _key_groups(_: click.Context, __: click.Parameter, text: str | None) -> KeyGroupRange | None:
    if text is None:
        return None
    first, _dots, last = text.partition("..")
    try:
        return KeyGroupRange(int(first), int(last or first))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a range such as 0..15") from error


key_groups_option: Final = click.option(
    "--key-groups",
    callback=_key_groups,
    metavar="A..B",
    help="Only these key groups.",
    show_default="all",
)


def check_key_groups(groups: KeyGroupRange | None, max_parallelism: int) -> None:
    """Refuse key groups that an operator does not have."""
    if groups is not None and groups.end >= max_parallelism:
        raise ConfigurationError(f"the operator has the key groups 0..{max_parallelism - 1}")
