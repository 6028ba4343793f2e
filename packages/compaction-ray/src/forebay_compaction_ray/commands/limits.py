"""The options of ``forebay compaction start`` for a gateway's limits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import Setting, options_from, settings_of

_LIMITS: Final = settings_of(GatewayLimits)


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the parameter ``limits``, a `GatewayLimits`, to a command."""

    @functools.wraps(command)
    def limited(**given: Any) -> None:
        limits = {name: given.pop(name.replace("-", "_")) for name in _LIMITS}
        command(limits=options_from(GatewayLimits, limits), **given)

    for name, setting in reversed(_LIMITS.items()):
        limited = click.option(
            f"--{name}",
            callback=functools.partial(_checked, setting),
            default=setting.default,
            show_default=True,
            help=setting.doc,
        )(limited)
    return limited


def _checked(setting: Setting, _: click.Context, __: click.Parameter, given: object) -> Any:
    try:
        return setting.value_of(given, key=f"--{setting.name}")
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error
