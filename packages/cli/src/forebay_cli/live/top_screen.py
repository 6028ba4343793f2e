"""The screen of ``forebay top``: a table of all operators, and details of as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs
from rich.console import Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from forebay_cli.live.top_details import OTHER_LINES, operator_lines
from forebay_cli.output.terminal import one_line
from forebay_state_processor.observing.quantities import (
    ABSENT,
    growth_text,
    seconds_text,
    short_text,
    size_text,
)

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from forebay_state_processor.observing import OperatorView, StoredOperator

_MOST_BARS: Final = 10
_FEWEST_BARS: Final = 3
_NAMES: Final = ("query", "uid")


class _Column(NamedTuple):
    """One column of the table of operators."""

    name: str
    shown_from: int
    """The narrowest terminal, in columns, that shows it."""
    text: Callable[[StoredOperator, OperatorView, datetime], str]


def _number(key: str, text: Callable[[float | None], str]) -> Callable[..., str]:
    def shown(_: StoredOperator, view: OperatorView, __: datetime) -> str:
        return text(view.timeline.count(key))

    return shown


def _ago(_: StoredOperator, view: OperatorView, now: datetime) -> str:
    newest = view.newest
    return ABSENT if newest is None else seconds_text((now - newest.committed).total_seconds())


_COLUMNS: Final = (
    _Column("query", 60, lambda one, _, __: one.query),
    _Column("uid", 0, lambda one, _, __: one.uid),
    _Column("batch", 0, lambda _, view, __: str(view.newest.batch) if view.newest else ABSENT),
    _Column("ago", 36, _ago),
    _Column("rows/s", 44, lambda _, view, __: short_text(view.timeline.rate("rows_in"))),
    _Column("out/s", 110, lambda _, view, __: short_text(view.timeline.rate("rows_out"))),
    _Column("state", 30, _number("state_bytes", size_text)),
    _Column("growth", 80, lambda _, view, __: growth_text(view.timeline.growth("state_bytes"))),
    _Column("keys", 90, _number("keys", short_text)),
    _Column("files", 100, lambda _, view, __: short_text(view.listing.data_files)),
    _Column("runs", 100, _number("runs_max", short_text)),
    _Column("compactions", 120, _number("compactions_pending", short_text)),
    _Column("pins", 120, lambda _, view, now: str(len(view.listing.reader_pins(now)))),
)


@attrs.frozen(kw_only=True)
class TopScreen:
    """Everything that was read at one moment; a rich renderable for any width and height."""

    url: str
    views: Mapping[StoredOperator, OperatorView]
    now: datetime
    fault: str = ""
    """The fault of the newest refresh, for all operators or for the queries and operators that it
    names, whose views are then older, or missing."""
    fits: bool = False
    """Whether it is cut to the terminal's height and width; otherwise nothing is cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the parts, line by line."""
        height = options.size.height if self.fits else None
        parts = Group(*self._parts(options.max_width, height))
        lines = console.render_lines(parts, options.update(height=None), pad=False)
        for line in lines[:height]:
            yield from line
            yield Segment.line()

    def _parts(self, width: int, height: int | None) -> Iterator[RenderableType]:
        """Yield the parts of the screen; each of them except the table is one line."""
        yield _line(f"forebay top  {self.url}  {self.now:%H:%M:%S}", "bold")
        if self.fault:
            yield _line(f"not refreshed: {self.fault}", "bold red")
        yield _table(self.views, self.now, width)
        used = 2 + bool(self.fault) + len(self.views)
        yield from self._details(width, None if height is None else height - used)

    def _details(self, width: int, room: int | None) -> Iterator[RenderableType]:
        """Yield the operators that fit into ``room`` lines."""
        most = _MOST_BARS
        if room is not None:
            each = room // max(1, len(self.views)) - OTHER_LINES
            most = max(_FEWEST_BARS, min(_MOST_BARS, each))
        left = list(self.views.items())
        while left:
            block = operator_lines(
                *left[0], now=self.now, width=width, most_bars=most, cut=self.fits
            )
            if room is not None and len(block) > room - (len(left) > 1):
                yield _line(f"… {len(left)} more: enlarge the window, or choose by --query, --uid")
                return
            room = None if room is None else room - len(block)
            yield from block
            left.pop(0)


def _line(text: str, style: str = "") -> Text:
    return Text(one_line(text), style, no_wrap=True, overflow="ellipsis")


def _table(views: Mapping[StoredOperator, OperatorView], now: datetime, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    columns = [column for column in _COLUMNS if width >= column.shown_from]
    for column in columns:
        table.add_column(
            column.name,
            justify="left" if column.name in _NAMES else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if column.name in _NAMES else None,
        )
    for operator, view in views.items():
        table.add_row(*(Text(one_line(column.text(operator, view, now))) for column in columns))
    return table
