"""``forebay top``: watch the operators of a state directory, from storage alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
from rich.live import Live

from forebay_cli.live.top_screen import TopScreen
from forebay_cli.options.conf import conf_options
from forebay_cli.options.durations import duration
from forebay_cli.options.operators import of_query_option, of_uid_option
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_cli.output.report import json_option, print_json
from forebay_cli.output.rich_console import console
from forebay_state_api.errors import ForebayError
from forebay_state_api.threads import start_thread
from forebay_state_processor.observing import DirectoryWatch
from forebay_state_processor.observing.plain_view import plain_operator

if TYPE_CHECKING:
    from rich.console import Console

    from forebay_state_api.settings import Settings

_LOOK_S: Final = 0.2
"""Seconds between two looks at the size of the window."""
_PIPE_COLUMNS: Final = 120


@click.command("top")
@state_dir_option
@of_query_option
@of_uid_option
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
        raise click.UsageError("--json prints a single refresh: add --once")
    if not once and not console().is_terminal:
        raise click.UsageError("the output is not a terminal: add --once, or --once --json")
    root = state_directory(state_dir, settings)
    watch = DirectoryWatch(root, query=query, uid=uid)
    screen = TopScreen(url=root.url, views=watch.views(), now=datetime.now(UTC))
    if not once:
        screen = attrs.evolve(screen, fault=_fault(watch), fits=True)
        _Live(watch, screen, interval.total_seconds()).run(console())
        return
    for problem in _problems(watch):
        click.echo(f"not read: {problem}", err=True)
    if as_json:
        print_json(_plain(watch, screen))
    else:
        _print(screen)


def _print(screen: TopScreen) -> None:
    """Print the screen once; into a pipe in a fixed width, without the padding of its lines."""
    terminal = console()
    if terminal.is_terminal:
        terminal.print(screen)
        return
    terminal.width = _PIPE_COLUMNS
    with terminal.capture() as drawn:
        terminal.print(screen)
    for line in drawn.get().splitlines():
        click.echo(line.rstrip())


def _plain(watch: DirectoryWatch, screen: TopScreen) -> list[dict[str, Any]]:
    """Return all operators as plain data; of one without a view only its names and the problem.

    A query whose operators could not be listed is there without a uid.
    """
    problems = {one: _text(error) for one, error in watch.problems.items()}
    unlisted: list[dict[str, Any]] = [
        {"query": query, "uid": None, "problem": _text(error)}
        for query, error in watch.unlisted.items()
    ]
    return unlisted + [
        {
            "query": one.query,
            "uid": one.uid,
            "problem": problems.get(one),
            **(plain_operator(one, screen.views[one], screen.now) if one in screen.views else {}),
        }
        for one in sorted(screen.views.keys() | problems.keys())
    ]


def _fault(watch: DirectoryWatch) -> str:
    """Return what could not be read, with the reasons, in one line."""
    return "; ".join(_problems(watch))


def _problems(watch: DirectoryWatch) -> Iterator[str]:
    """Yield each query that could not be listed, and each operator that could not be read."""
    for query, error in watch.unlisted.items():
        yield f"operators of query {query}: {_text(error)}"
    for operator, error in watch.problems.items():
        yield f"operator {operator.uid} of query {operator.query}: {_text(error)}"


def _text(error: Exception) -> str:
    """Return an error in one line, with its class if it is unexpected."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ForebayError) else f"{type(error).__name__}: {text}"


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
                views, fault = self._watch.refresh(), _fault(self._watch)
                self._screen = attrs.evolve(self._screen, views=views, now=now, fault=fault)
            except Exception as error:  # noqa: BLE001 - the thread's end would freeze the screen
                self._screen = attrs.evolve(self._screen, now=now, fault=_text(error))
            self._read.set()
