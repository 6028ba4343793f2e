"""``forebay top``: watch the operators of a state directory, from storage alone."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs
import click
from rich.console import Console
from rich.live import Live

from forebay_state_api.commands.conf_options import conf_options
from forebay_state_api.commands.duration_option import duration
from forebay_state_api.commands.report import console, json_option, print_json
from forebay_state_api.commands.state_directory import state_dir_option, state_directory
from forebay_state_api.commands.top_screen import TopScreen
from forebay_state_api.errors import ForebayError
from forebay_state_api.observing import DirectoryWatch
from forebay_state_api.observing.plain import plain_operator
from forebay_state_api.threads import start_thread

if TYPE_CHECKING:
    from forebay_state_api.settings import Settings

_LOOK_S: Final = 0.2
"""Seconds between two looks at the size of the window."""
_PIPE_COLUMNS: Final = 120


@click.command("top")
@state_dir_option
@click.option("--query", help="Operators of this query only.")
@click.option("--uid", help="Operators of this uid only.")
@click.option(
    "--interval", callback=duration, default="2s", show_default=True, help="Time between reads."
)
@click.option("--once", is_flag=True, help="Print what is there now, and end.")
@json_option
@conf_options
def top(
    state_dir: str,
    query: str | None,
    uid: str | None,
    interval: timedelta,
    settings: Settings,
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Show running operators: rates, time by phase, state, hot key groups, compaction.

    Reads the state directory alone, at most three requests for each operator and refresh, and
    changes nothing. Ctrl-C ends it.
    """
    if as_json and not once:
        raise click.UsageError("--json prints one moment: add --once")
    if not once and not console().is_terminal:
        raise click.UsageError("the output is not a terminal: add --once, or --once --json")
    root = state_directory(state_dir, settings)
    watch = DirectoryWatch(root, query=query, uid=uid)
    screen = TopScreen(url=root.url, views=watch.views(), now=datetime.now(UTC))
    if as_json:
        print_json([plain_operator(one, view, screen.now) for one, view in screen.views.items()])
    elif once:
        (console() if console().is_terminal else Console(width=_PIPE_COLUMNS)).print(screen)
    else:
        _Live(watch, attrs.evolve(screen, fits=True), interval.total_seconds()).run(console())


class _Live:
    """The screen of a terminal, which a thread keeps new."""

    def __init__(self, watch: DirectoryWatch, screen: TopScreen, interval_s: float) -> None:
        self._watch = watch
        self._screen = screen
        self._interval_s = interval_s
        self._read = threading.Event()
        self._ended = threading.Event()

    def run(self, terminal: Console) -> None:
        """Show the screen until Ctrl-C; draw it again after a read, and in a new size."""
        start_thread(threading.Thread(target=self._refresh, name="forebay-top", daemon=True))
        with Live(self._screen, console=terminal, screen=True, auto_refresh=False) as live:
            size = terminal.size
            try:
                while True:
                    read = self._read.wait(_LOOK_S)
                    if read or terminal.size != size:
                        size = terminal.size
                        self._read.clear()
                        live.update(self._screen, refresh=True)
            except KeyboardInterrupt:
                self._ended.set()

    def _refresh(self) -> None:
        """Read again and again; after a failure the old numbers stay, with the reason."""
        while not self._ended.wait(self._interval_s):
            now = datetime.now(UTC)
            try:
                views = self._watch.refresh()
                self._screen = attrs.evolve(self._screen, views=views, now=now, fault="")
            except Exception as error:  # noqa: BLE001 - the thread's end would freeze the screen
                text = " ".join(str(error).split())
                if not isinstance(error, ForebayError):
                    text = f"{type(error).__name__}: {text}"
                self._screen = attrs.evolve(self._screen, now=now, fault=text)
            self._read.set()
