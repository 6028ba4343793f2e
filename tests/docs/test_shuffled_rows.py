"""Every block that registers a timer gives the same result for rows out of order, or says why not.

The functions are those of the pages. Their rows are shuffled: within a micro-batch, and where the
result does not depend on micro-batches over several of them, while the watermark moves. No row is
late.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from forebay_spark_runtime.testing import FunctionHarness

from .test_blocks import NOT_RUN, ROOT, blocks

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MINUTES = (0, 1, 3, 8, 8, 9, 14, 29, 31, 55, 61, 62, 95, 140, 142, 147, 148, 200, 201, 260, 261)
"""Times of rows: near to one another, equal, and with gaps for every window and session."""
REGISTERS = re.compile(r"(register|replace)_(event|processing)_time\(")
DISORDER = timedelta(minutes=10)
LATENESS = DISORDER + timedelta(microseconds=1)
"""The lateness with which no row is late that comes up to `DISORDER` after a later one."""
ORDER_OF_ARRIVAL = "order in which"
"""The words of a function whose result depends on the order of its rows."""


@attrs.frozen(kw_only=True)
class Example:
    """A function of a page, and the rows that it gets."""

    page: str
    name: str
    key: str
    rows: Callable[[dict[str, Any]], list[Any]]
    """Makes the rows, from the names of the page."""
    arguments: tuple[str, ...] = ()
    """Expressions for the function's arguments, in the names of the page."""
    event_time: str | None = "at"
    splits: bool = True
    """Whether rows may also be in other micro-batches."""
    shown: Callable[[Any], Any] = tuple
    """The part of a row that has to be the same."""
    clients: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Makes the clients; what they got is part of the result."""

    def __str__(self) -> str:
        return f"{Path(self.page).stem}-{self.name}"


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def of_class(name: str, make: Callable[[Any, int, int], Any]) -> Callable[[dict[str, Any]], list]:
    return lambda names: [make(names[name], *pair) for pair in enumerate(MINUTES)]


VISITS = of_class("Visit", lambda visit, n, minute: visit("ab"[n % 2], at(minute), 10**n))
SALES = of_class("Sale", lambda sale, n, minute: sale("ab"[n % 2], 2**n, at(minute)))
QUIX, TWS = "docs/how-to/from-quix-and-bytewax.md", "docs/how-to/from-transform-with-state.md"
EXAMPLES = [
    Example(
        page="docs/reference/state.md",
        name="Sessions",
        key="user",
        rows=of_class("Click", lambda click, n, minute: click("ab"[n % 2], at(minute))),
    ),
    Example(page=QUIX, name="Hopping", key="user", rows=VISITS),
    Example(page=QUIX, name="Sessions", key="user", rows=VISITS),
    Example(page=QUIX, name="ByTheClock", key="user", rows=VISITS),
    Example(
        page="docs/how-to/sliding-windows.md",
        name="InOrder",
        key="user",
        rows=of_class("Payment", lambda row, n, minute: row("ab"[n % 2], at(minute), n, minute)),
    ),
    Example(
        page=TWS,
        name="Batches",
        key="user",
        rows=of_class("Row", lambda row, n, _: row("ab"[n % 2], 2**n)),
        event_time=None,
        splits=False,
    ),
    Example(
        page=TWS,
        name="TimeOut",
        key="user",
        rows=of_class("Row", lambda row, n, _: row("ab"[n % 2], 2**n)),
        event_time=None,
        splits=False,
    ),
    Example(page=TWS, name="Turnover", key="shop", rows=SALES, splits=False),
    Example(
        page=TWS,
        name="Distinct",
        key="id",
        rows=of_class("Reading", lambda reading, n, minute: reading("abc"[n % 3], at(minute))),
        splits=False,
        shown=lambda row: row[0],
    ),
    Example(
        page=TWS,
        name="Present",
        key="id",
        rows=of_class("Reading", lambda reading, n, minute: reading("abc"[n % 3], at(minute))),
        event_time=None,
        splits=False,
    ),
    Example(
        page="docs/how-to/bounded-dataframes.md",
        name="Quiet",
        key="user",
        rows=lambda _: [{"user": "ab"[n % 2], "at": at(m)} for n, m in enumerate(MINUTES)],
        splits=False,
    ),
    Example(
        page="docs/how-to/from-flink.md",
        name="Sums",
        key="shop",
        rows=SALES,
        arguments=("MINUTE",),
        shown=lambda row: row[:3],
    ),
    Example(
        page="docs/how-to/from-flink.md",
        name="Refined",
        key="shop",
        rows=SALES,
        arguments=("MINUTE", "5 * MINUTE"),
    ),
    Example(
        page="docs/explanation/exactly-once.md",
        name="Outbox",
        key="card",
        rows=lambda _: [{"card": "ab"[n % 2], "payment": str(n), "amount": n} for n in range(9)],
        event_time=None,
        clients=lambda names: {"bank": names["Bank"]()},
    ),
    Example(
        page="docs/how-to/from-tws-tester.md",
        name="Counts",
        key="user",
        rows=of_class("Row", lambda row, n, minute: row("ab"[n % 2], 2**n, at(minute))),
        splits=False,
    ),
]
BY_ARRIVAL = [(QUIX, "Cart"), (QUIX, "CartToTheEnd"), (TWS, "Distinct")]
"""Functions whose result depends on the order of rows, as their docstrings mention."""


def names_of(page: str) -> dict[str, Any]:
    """Return what a page defines: its imports, functions, classes and constants."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(ROOT / page):
        if block.language != "python" or block.text.startswith(NOT_RUN):
            continue
        for node in ast.parse(block.text).body:
            definition = isinstance(
                node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
            )
            if definition or (isinstance(node, ast.Assign) and uses_only(names, node)):
                exec(compile(ast.Module([node], []), page, "exec"), names)
    return names


def uses_only(names: dict[str, Any], node: ast.Assign) -> bool:
    """Return whether a constant is made of names that are there, and of no session."""
    used = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    own = {one.arg for one in ast.walk(node.value) if isinstance(one, ast.arg)}
    return used <= (names.keys() | own | vars(builtins).keys()) - {"SparkSession"}


def outcome(example: Example, batches: Sequence[Sequence[Any]], names: dict[str, Any]) -> Any:
    """Run micro-batches to the end of time; return the rows, in no order."""
    arguments = [eval(one, names) for one in example.arguments]
    clients = None if example.clients is None else example.clients(names)
    lateness = None if example.event_time is None else LATENESS
    with FunctionHarness(
        names[example.name](*arguments),
        example.key,
        event_time=example.event_time,
        allowed_lateness=lateness,
        clients=clients,
    ) as harness:
        rows = [row for batch in batches for row in harness.process(batch)]
        harness.clock.advance(timedelta(hours=1))
        rows += harness.process([])
        harness.clock.advance(timedelta(days=1))
        rows += harness.process([], end=True)
    kept = sorted(map(repr, map(example.shown, rows)))
    return kept, {name: vars(client) for name, client in (clients or {}).items()}


def disordered(rows: Sequence[Any], chance: random.Random) -> Sequence[Any]:
    """Return the rows with each at most `DISORDER` behind a later one."""
    if not hasattr(rows[0], "at"):
        return chance.sample(rows, len(rows))
    return sorted(rows, key=lambda row: row.at + chance.random() * DISORDER)


def cut(rows: Sequence[Any], chance: random.Random) -> list[Sequence[Any]]:
    """Return the rows in micro-batches of one to three."""
    batches, start = [], 0
    while start < len(rows):
        end = start + chance.randint(1, 3)
        batches.append(rows[start:end])
        start = end
    return batches


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_rows_out_of_order_give_the_same(example: Example) -> None:
    names = names_of(example.page)
    rows = example.rows(names)
    expected = outcome(example, [rows], names)
    assert expected != ([], {}), "it emits something, or calls somebody"
    chance = random.Random(example.name)
    for _ in range(3):
        assert outcome(example, [chance.sample(rows, len(rows))], names) == expected
        if example.splits:
            assert outcome(example, cut(disordered(rows, chance), chance), names) == expected


@pytest.mark.parametrize(("page", "name"), BY_ARRIVAL)
def test_others_say_why_not(page: str, name: str) -> None:
    assert ORDER_OF_ARRIVAL in names_of(page)[name].__doc__


def test_no_block_is_left_out() -> None:
    registering = {
        (str(page.relative_to(ROOT)), node.name)
        for page in [
            *ROOT.glob("*.md"),
            *ROOT.glob("packages/*/README.md"),
            *ROOT.glob("docs/**/*.md"),
        ]
        for block in blocks(page)
        if block.language == "python"
        for node in ast.parse(block.text).body
        if isinstance(node, ast.ClassDef) and REGISTERS.search(ast.unparse(node))
    }
    known = {(example.page, example.name) for example in EXAMPLES} | set(BY_ARRIVAL)
    assert registering - known == set()
    assert {name for _, name in registering} >= {"Sessions", "Turnover"}


def test_no_file_of_the_examples_registers_timers() -> None:
    files = [*ROOT.glob("examples/*.py")]
    assert files
    assert not [file for file in files if REGISTERS.search(file.read_text(encoding="utf-8"))]
