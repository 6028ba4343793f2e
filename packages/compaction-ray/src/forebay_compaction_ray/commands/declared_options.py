"""The options of ``forebay compaction start`` that classes declare as settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import click

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import Setting, options_from, settings_of

Command = Callable[..., None]


def declared_options(
    parameter: str, options: type[attrs.AttrsInstance]
) -> Callable[[Command], Command]:
    """Add a parameter to a command: an instance of ``options``, from an option per setting."""
    settings = settings_of(options)

    def add_to(command: Command) -> Command:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            values = {name: given.pop(name.replace("-", "_")) for name in settings}
            command(**{parameter: options_from(options, values)}, **given)

        for name, setting in reversed(settings.items()):
            with_options = click.option(
                f"--{name}",
                callback=functools.partial(_checked, setting),
                default=setting.default,
                show_default=True,
                help=setting.doc,
            )(with_options)
        return with_options

    return add_to


def _checked(setting: Setting, _: click.Context, __: click.Parameter, given: object) -> Any:
    if given is None:
        return None
    try:
        return setting.value_of(given, key=f"--{setting.name}")
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error
