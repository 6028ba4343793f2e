"""The options of ``forebay compaction start`` that bound what a gateway takes and waits for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from forebay_compaction_ray.declaring import declarations
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import Setting


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameter ``limits``, a `GatewayLimits`."""

    @functools.wraps(command)
    def limited(**given: Any) -> None:
        fields = {field: given.pop(field) for field in declarations(GatewayLimits)}
        command(limits=GatewayLimits(**fields), **given)

    for field, setting in reversed(declarations(GatewayLimits).items()):
        limited = click.option(
            f"--{setting.name}",
            field,
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
