"""Options of commands that are sizes: ``64k``, ``256m``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import BYTES, Setting

T = TypeVar("T", bound=Callable[..., Any])


def size_option(name: str, *, default: int, help: str) -> Callable[[T], T]:  # noqa: A002 - click's
    """Return an option that takes a size of at least one byte, which the command gets in bytes."""
    setting = Setting(name, BYTES, default, help, minimum=1)

    def size(_: click.Context, __: click.Parameter, text: str) -> int:
        try:
            in_bytes: int = setting.value_of(text, key=name)
        except ConfigurationError as error:
            raise click.BadParameter(str(error)) from error
        return in_bytes

    shown = BYTES.show(default)
    return click.option(
        name, callback=size, metavar="SIZE", default=shown, show_default=True, help=help
    )
