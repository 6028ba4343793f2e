"""Options of commands that are durations: ``30s``, ``1h``."""

from __future__ import annotations

from datetime import timedelta

import click

from forebay_state_api.settings import DURATION


def duration(_: click.Context, __: click.Parameter, text: str) -> timedelta:
    """Return the duration that a user wrote; the callback of an option."""
    try:
        return timedelta(seconds=DURATION.accept(text))
    except (TypeError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is not {DURATION.expected}") from error
