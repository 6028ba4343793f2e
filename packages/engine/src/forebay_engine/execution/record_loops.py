"""The loops that run the records of an input: one for each form of a record method.

Every record passes through one of them, so they call nothing that they can do without. They are
generated from one template: in a form's ordinary loop an error fails the micro-batch; in its
isolating one an error, or a row that does not fit, fails its record. There the journal is empty
when a record begins, and most records end at once and return one row, which passes the quick test:
they come first. The rows of a record that was set aside are checked when it ends.
"""

from __future__ import annotations

import functools
import linecache
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from forebay_engine.execution.engine_interface import Entries, RecordFunction, RecordHost
from forebay_engine.execution.record_drivers import run_apart, run_drivers
from forebay_engine.execution.returned_rows import give_out, give_out_one
from forebay_engine.execution.scheduler import FRESH

RecordLoop: TypeAlias = Callable[[RecordHost, RecordFunction, Entries, int], Any]
"""Called with the engine, the function, the records of an input, and the input's number."""

PLAIN: Final = "plain"
"""Plain functions, and generators that may return a value."""
MAP: Final = "map"
"""A plain function from one row to one row."""
GENERATOR: Final = "generator"
"""A generator of rows that returns nothing."""
COROUTINE: Final = "coroutine"
ASYNC_GENERATOR: Final = "async generator"

_LOOP: Final = """\
def loop(host, fn, entries, side):
    scheduler = host.scheduler
    admission = scheduler.admission
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    append, extend = rows_out.append, rows_out.extend
    SETUP
    for row, key, group in entries:
        if busy and admission.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        RECORD
"""
_ORDINARY: Final = """\
CALL
TAKE
if busy and scheduler.current is not None:
    SUSPENDED
    scheduler.leave()
"""
_ISOLATING: Final = """\
journal.last = None
try:
    CALL
    USUAL
    TAKE
    if scheduler.current is None:
        if rows_out:
            scheduler.emit()
        continue
except Exception as error:  # this runs any user code
    SUSPENDED_FAILS
    scheduler.fail_record(error)
else:
    SUSPENDED
    scheduler.leave()
"""
_ISOLATING_SETUP: Final = """\
journal = scheduler.journal
add_usual = scheduler.checked_rows.add_usual
"""
_USUAL: Final = """\
if {kind} and not rows_out and scheduler.current is None and add_usual({rows}):
    continue
"""
_TAKE_ROWS: Final = """\
if rows.__class__ is list:
    extend(rows)
elif rows is not None:
    give_out(host, rows)
"""
_TAKE_ONE: Final = """\
if result.__class__ is tuple:
    append(result)
else:
    give_out_one(host, result)
"""
_SUSPENDED: Final = """\
if scheduler.current.driver is not None:
    return
"""
_SUSPENDED_FAILS: Final = """\
if scheduler.current is not None and scheduler.current.driver is not None:
    raise  # the driver is a step of the record
"""


@attrs.frozen
class _Form:
    """The parts of a loop that depend on the form."""

    call: str
    """Runs the function for one record."""
    take: str = ""
    """Emits what it returned."""
    usual: tuple[str, str] | None = None
    """The test for what most functions return, and an expression for its rows."""
    driven: bool = False
    """Whether the loop is a driver: a coroutine that awaits the function."""

    def compiled(self, name: str, *, isolating: bool) -> Any:
        """Compile the loop; tracebacks show its lines."""
        usual = ""
        if isolating and self.usual is not None:
            kind, rows = self.usual
            usual = _USUAL.format(kind=kind, rows=rows)
        text = _filled(_LOOP, RECORD=_ISOLATING if isolating else _ORDINARY)
        text = ("async " if self.driven else "") + _filled(
            text,
            SETUP=_ISOLATING_SETUP if isolating else "",
            CALL=self.call,
            USUAL=usual,
            TAKE=self.take,
            SUSPENDED=_SUSPENDED if self.driven else "",
            SUSPENDED_FAILS=_SUSPENDED_FAILS if self.driven else "",
        )
        file = f"<{'isolating ' if isolating else ''}loop of {name} methods>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        names: dict[str, Any] = {"FRESH": FRESH, "give_out": give_out, "give_out_one": give_out_one}
        exec(compile(text, file, "exec"), names)  # noqa: S102 - the text is the template above
        return names["loop"]


def _filled(template: str, **parts: str) -> str:
    """Return ``template`` with each line that consists of a part's name replaced by the part."""
    lines = []
    for line in template.splitlines(keepends=True):
        part = parts.get(line.strip())
        lines.append(line if part is None else textwrap.indent(part, line[: -len(line.lstrip())]))
    return "".join(lines)


_FORMS: Final = {
    PLAIN: _Form("rows = fn(row, context)\n", _TAKE_ROWS, usual=("rows.__class__ is list", "rows")),
    GENERATOR: _Form("extend(fn(row, context))\n"),
    MAP: _Form(
        "result = fn(row, context)\n", _TAKE_ONE, usual=("result.__class__ is tuple", "[result]")
    ),
    COROUTINE: _Form(
        "rows = await fn(row, context)\n",
        _TAKE_ROWS,
        usual=("rows.__class__ is list", "rows"),
        driven=True,
    ),
    ASYNC_GENERATOR: _Form(
        "async for out in fn(row, context):\n    append(out)\n",
        driven=True,
    ),
}


def _loops(*, isolating: bool) -> Mapping[str, RecordLoop]:
    """Return the loop of each form."""
    loops: dict[str, RecordLoop] = {}
    for name, form in _FORMS.items():
        loop = form.compiled(name, isolating=isolating)
        apart = run_apart if name is COROUTINE and not isolating else None
        loops[name] = functools.partial(run_drivers, loop, apart) if form.driven else loop
    return loops


ORDINARY_LOOPS: Final = _loops(isolating=False)
"""Form → the loop in which an error fails the micro-batch."""
ISOLATING_LOOPS: Final = _loops(isolating=True)
"""Form → the loop in which an error fails its record alone."""
