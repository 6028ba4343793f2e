"""The ``forebay`` command. All sub-commands come from the hook ``forebay_commands``.

Errors of Forebay and of the operating system are printed as one line, and the exit status is then
2, as for wrong usage.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

import click

from forebay_cli.output.terminal import guard_streams
from forebay_state_api.contract.storage_fault import words_of
from forebay_state_api.errors import ForebayError, UnknownPluginError
from forebay_state_api.plugins import plugins
from forebay_state_api.plugins.kinds import COMMANDS

__all__ = ["main"]


class _ForebayError(click.ClickException):
    """Prints a `ForebayError` on one line."""

    exit_code = 2


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except ForebayError as fault:
        text = " ".join(str(fault).split())
        raise _ForebayError(text or type(fault).__name__) from fault
    except OSError as fault:
        if fault.errno in (None, errno.EPIPE):  # the reader closed the pipe: click ends quietly
            raise
        raise _ForebayError(words_of(fault)) from fault


class _InstalledCommands(click.Group):
    """A group of the plugins' commands; plugins are loaded when a command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(plugins().commands())

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        try:
            return plugins().command(cmd_name)
        except UnknownPluginError:
            if plugins().broken_for(COMMANDS):
                raise
            return None  # click has words for that

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if broken := plugins().broken_for(COMMANDS):
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(f"Broken: {', '.join(broken)}; see forebay plugins.")

    def main(self, *args: Any, **kwargs: Any) -> Any:
        guard_streams()
        return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _one_line():  # --help lists the commands here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)


@click.group(cls=_InstalledCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="forebay-cli")
def main() -> None:
    """Asynchronous, disaggregated keyed state for PySpark."""
