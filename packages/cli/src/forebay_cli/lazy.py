"""Commands that are imported when they run, so that the others and ``--help`` start at once."""

from __future__ import annotations

import importlib
from typing import Any

import click

from forebay_state_api.errors import PluginError

__all__ = ["LazyCommand"]


class LazyCommand(click.Command):
    """Takes a command's place in a group; the command itself is imported when it is called.

    ``forebay_commands`` of a plugin may return these in place of commands.
    """

    def __init__(self, name: str, target: str, short_help: str) -> None:
        """``target`` is ``module:attribute``; ``short_help`` is the command's first sentence."""
        super().__init__(name, short_help=short_help)
        self._target = target

    def load(self) -> click.Command:
        """Import the command; raises `PluginError` if that fails."""
        module, _, attribute = self._target.partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as fault:
            raise PluginError(
                f"the command {self.name!r} cannot be imported ({self._target}): {fault!r}"
            ) from fault
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Return the context of the command itself, which click then invokes."""
        return self.load().make_context(*args, **kwargs)
