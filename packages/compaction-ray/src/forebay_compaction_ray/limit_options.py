"""The options of ``forebay compaction start`` that bound what a gateway takes and waits for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import attrs
import click

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_state_api.settings import BYTES, DURATION, SettingType

_DEFAULTS: Final = GatewayLimits()


@attrs.frozen
class _Typed:
    """Something that settings take too, with its units; more than nothing."""

    kind: SettingType

    def __call__(self, _: click.Context, __: click.Parameter, text: str) -> Any:
        """As a callback of click."""
        try:
            value = self.kind.accept(text)
        except (TypeError, ValueError) as error:
            raise click.BadParameter(f"{text!r} is not {self.kind.expected}") from error
        if value <= 0:
            raise click.BadParameter(f"{text!r} is not more than 0")
        return value


_SECONDS: Final = _Typed(DURATION)
_SIZE: Final = _Typed(BYTES)
_SOME: Final = click.IntRange(min=1)

_OPTIONS: Final[tuple[tuple[str, str, click.IntRange | _Typed, str], ...]] = (
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
        how: dict[str, Any] = {"type": kind, "default": default}
        if isinstance(kind, _Typed):
            how = {"callback": kind, "default": kind.kind.show(default)}
        limited = click.option(option, field, **how, show_default=True, help=help_text)(limited)
    return limited
