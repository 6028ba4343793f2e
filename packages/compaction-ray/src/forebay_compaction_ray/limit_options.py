"""The options of ``forebay compaction start`` that bound what a gateway takes and waits for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_state_api.settings import BYTES, DURATION, SettingType

_DEFAULTS: Final = GatewayLimits()


class _Typed(click.ParamType):
    """Something that settings take too, with its units; more than nothing."""

    def __init__(self, kind: SettingType, name: str) -> None:
        self._kind: Final = kind
        self.name = name

    def shown(self, value: Any) -> str:
        """As people write it."""
        return self._kind.show(value)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """As `click.ParamType.convert`."""
        try:
            converted = self._kind.accept(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not {self._kind.expected}", param, ctx)
        if converted <= 0:
            self.fail(f"{value!r} is not more than 0", param, ctx)
        return converted


_SECONDS: Final = _Typed(DURATION, "duration")
_SIZE: Final = _Typed(BYTES, "bytes")
_SOME: Final = click.IntRange(min=1)

_OPTIONS: Final[tuple[tuple[str, str, click.ParamType, str], ...]] = (
    ("--slots", "slots", _SOME, "Jobs of a worker at once."),
    ("--queue", "queue", click.IntRange(min=0), "Jobs that may wait."),
    ("--jobs-per-client", "jobs_per_client", _SOME, "Jobs of one process that wait or run."),
    ("--max-job-bytes", "job_bytes", _SIZE, "Input of one job."),
    ("--max-inputs", "inputs", _SOME, "Input files of one job."),
    ("--ping-every", "ping_every_s", _SECONDS, "How often workers are asked whether they live."),
    ("--ping-misses", "ping_misses", _SOME, "Pings in vain until a worker gets no more jobs."),
    ("--stall-timeout", "stall_timeout_s", _SECONDS, "A worker without a sign or step is killed."),
    ("--abort-timeout", "abort_timeout_s", _SECONDS, "So is one whose job does not stop."),
    ("--drain-timeout", "drain_timeout_s", _SECONDS, "Longest wait for jobs at drain and stop."),
    ("--max-deaths", "deaths", _SOME, "Workers that may die at the same work."),
)
"""Option, field of `GatewayLimits`, type, help."""


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameter ``limits``, a `GatewayLimits`."""

    @functools.wraps(command)
    def limited(**given: Any) -> None:
        fields = {field: given.pop(field) for _, field, _, _ in _OPTIONS}
        command(limits=GatewayLimits(**fields), **given)

    for option, field, kind, help_text in reversed(_OPTIONS):
        default = getattr(_DEFAULTS, field)
        if isinstance(kind, _Typed):
            default = kind.shown(default)
        limited = click.option(
            option, field, type=kind, default=default, show_default=True, help=help_text
        )(limited)
    return limited
