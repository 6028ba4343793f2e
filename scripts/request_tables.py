"""Fill the tables of docs/how-to/storage.md with requests, which it counts, and their prices.

``python scripts/request_tables.py`` runs micro-batches and readers on a storage in memory, and
counts what this is asked, for several numbers of subtasks.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from forebay_console.watching.operator import WatchedOperator
from forebay_engine.execution.counted_storage import RequestCounts, counted
from forebay_state_api import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from forebay_state_api.contract.object_storage import ObjectPage, ObjectStorage
from forebay_state_api.plugins import plugins
from forebay_state_api.storage import ForwardingStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_processor.observing import DirectoryWatch, find_operators
from forebay_state_processor.observing.request_costs import (
    GET_USD,
    MONTH_S,
    PUT_OR_LIST_USD,
    usd_text,
)
from forebay_state_processor.reading import Follower, FollowOptions
from forebay_state_processor.reading.feed import ChangeFeed
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings
from forebay_testing.compaction import ImmediateCompaction
from forebay_testing.job import KeyedJob

PAGE: Final = Path(__file__).parents[1] / "docs" / "how-to" / "storage.md"
_TABLE: Final = re.compile(r"(<!-- table of ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_KEYS: Final = [(f"key {number}",) for number in range(300)]
_GROUPS: Final = 64
_SUBTASKS: Final = (1, 4, 16)
_PAGE: Final = 100
_IN_FILES: Final = {"held-bytes": 0}
"""Larger state: no manifest of the heap backend holds a file."""
PROVIDERS: Final = (1.0, 1.1, 0.9)
"""The prices of S3 and Google, of Azure and of R2, as multiples of S3's."""


class Requests(NamedTuple):
    """Requests by class of price."""

    puts_and_lists: float
    gets: float

    @property
    def usd(self) -> float:
        """The price at S3."""
        return self.puts_and_lists * PUT_OR_LIST_USD + self.gets * GET_USD

    def plus(self, other: Requests) -> Requests:
        """Add other requests."""
        return Requests(self.puts_and_lists + other.puts_and_lists, self.gets + other.gets)

    def times(self, factor: float) -> Requests:
        """Return as many of them."""
        return Requests(self.puts_and_lists * factor, self.gets * factor)


def _requests(figures: Mapping[str, float]) -> Requests:
    put, list_, get = (int(figures[f"storage_requests_{kind}"]) for kind in ("put", "list", "get"))
    return Requests(put + list_, get)


class Count(KeyedProcessFunction[str, Any, Any]):
    """Counts the rows of each key."""

    def open(self, context: RuntimeContext) -> None:
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row: Any, ctx: Any) -> None:
        del row, ctx
        self.n.update(self.n.value() + 1)


class InPages(ForwardingStorage):
    """Lists 100 names a page, so that few versions are a folder of many pages, as on S3."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self.waits = True

    def list_page(self, after: str = "") -> ObjectPage:
        """Return the next names."""
        found = self.inner.list_page(after).objects
        return ObjectPage(found[:_PAGE], is_last=len(found) <= _PAGE)


class Stream:
    """An operator with a few versions, and a storage that counts what its readers ask."""

    def __init__(self, backend: str, subtasks: int, options: Mapping[str, Any] = _IN_FILES) -> None:
        url = f"memory://{uuid.uuid4()}"
        root = MemoryStorage(url)
        self._job: Final = KeyedJob(
            plugins().backend(backend),
            root,
            parallelism=subtasks,
            max_parallelism=_GROUPS,
            key_type=str,
            options=options if backend == "heap" else {},
            compaction=ImmediateCompaction.open(root, {}),
        )
        for _ in range(4):
            self.batch()
        self._counts: Final = RequestCounts()
        self.root: Final = counted(InPages(MemoryStorage(url)), self._counts)

    def batch(self, rows: Sequence[tuple[str]] = _KEYS) -> Requests:
        """Run a micro-batch; return the requests of its subtask with the most."""
        self._job.run(Count(), rows)
        return max(_requests(one.figures) for one in self._job.reports)

    def asked(self, read: Callable[[], object]) -> Requests:
        """Return the requests of a reader."""
        before = self._counts.by_kind()
        read()
        new = {kind: number - before[kind] for kind, number in self._counts.by_kind().items()}
        return Requests(new["put"] + new["list"], new["get"])

    @property
    def source(self) -> OperatorSource:
        """The operator, for readers."""
        settings = reader_settings({})
        return OperatorSource.with_settings(
            self.root, query="query", uid="operator", settings=settings
        )


def _reading(backend: str, subtasks: int) -> Iterator[tuple[str, Requests]]:
    """Yield what readers ask, by what they do."""
    stream = Stream(backend, subtasks)
    source = stream.source
    snapshots = []

    def open_() -> None:
        snapshots.append(source.opened(lambda shown: snapshot_of(source, shown)))

    yield "open", stream.asked(open_)
    yield "key", stream.asked(lambda: snapshots[0].get("n", "key 7"))
    snapshots[0].close()
    with Follower(source, FollowOptions(poll=timedelta(days=1))) as follower:
        yield "look", stream.asked(follower.refresh)
        stream.batch()
        yield "move", stream.asked(follower.refresh)
    feed = ChangeFeed(source)
    start = feed.newest()
    yield "feed idle", stream.asked(lambda: feed.after(start))
    stream.batch()

    def changes() -> None:
        with feed.between(start, feed.after(start)[-1]) as difference:
            assert len([*difference.rows("n")]) == len(_KEYS)

    yield "feed", stream.asked(changes)


def _watching(subtasks: int) -> Iterator[tuple[str, Requests]]:
    """Yield what `forebay top` and a page of the console ask, by what they do."""
    stream = Stream("heap", subtasks)
    while len(stream.root.list()) <= 2 * _PAGE:
        stream.batch()
    watch = DirectoryWatch(stream.root)
    watch.views()
    tops = []
    for _ in range(20):
        watch.refresh()
    for _ in range(10):
        stream.batch()
        tops.append(stream.asked(watch.refresh))
    yield "top", _total(tops).times(1 / 10)
    yield "find", stream.asked(lambda: find_operators(stream.root))
    (stored,) = find_operators(stream.root).operators
    operator = WatchedOperator(stream.root, stored, ttl_s=0, now=lambda: 0.0)
    for _ in range(20):
        operator.look()
    stream.batch()
    yield "page", stream.asked(lambda: operator.look().busiest)


def _total(some: Sequence[Requests]) -> Requests:
    return Requests(sum(one.puts_and_lists for one in some), sum(one.gets for one in some))


def in_subtasks(numbers: Sequence[float]) -> str:
    """Return how numbers depend on the subtasks: ``2 + p``; raise if that is not linear."""
    first, second, third = numbers
    each = (second - first) / (_SUBTASKS[1] - _SUBTASKS[0])
    start = first - each * _SUBTASKS[0]
    if start + each * _SUBTASKS[2] != third:
        raise ValueError(f"{numbers} are no line over {_SUBTASKS} subtasks")
    if not each:
        return f"{start:g}"
    return f"{start:g} + {'' if each == 1 else f'{each:g} '}p"


def streams() -> dict[str, Requests]:
    """Return the requests of a subtask in a micro-batch, by backend, and where nothing changes."""
    found = {}
    for backend in ("heap", "lsm"):
        several = [Stream(backend, subtasks) for subtasks in _SUBTASKS]
        for what, rows in ((backend, _KEYS), (f"{backend}, nothing changed", [])):
            (found[what],) = {stream.batch(rows) for stream in several}
    small = [Stream("heap", subtasks, {}) for subtasks in _SUBTASKS]
    (found["heap, a change of up to 4 KiB"],) = {stream.batch(_KEYS[:60]) for stream in small}
    return found


def readers() -> dict[str, list[Requests]]:
    """Return the requests of readers for each number of subtasks, by what they do."""
    found: dict[str, list[Requests]] = {}
    for subtasks in _SUBTASKS:
        for backend in ("heap", "lsm"):
            for what, requests in _reading(backend, subtasks):
                found.setdefault(f"{what}, {backend}", []).append(requests)
        for what, requests in _watching(subtasks):
            found.setdefault(what, []).append(requests)
    return found


_READERS: Final = {
    "open, heap": "`open_state`: open a version",
    "key, heap": "a look-up in a key group that was not read yet, heap",
    "key, lsm": "the same, lsm, at most",
    "look, heap": "a follower's check, nothing new",
    "move, heap": "a follower's check, a new version, without its cached keys",
    "feed idle, heap": "a change feed's `after`, nothing new",
    "feed, heap": "`after` and `between`, a new version of little state, heap",
    "feed, lsm": "the same, lsm",
    "top": "`forebay top`: a refresh, a new version; with the searches for operators, on average",
    "find": "the console: finding the operators of a query, every 5 s",
    "page": "the console: a refresh of an operator's page, a new version",
}
"""Key of `readers` → the row of the table."""


def tables() -> dict[str, list[list[str]]]:
    """Return the rows of each table by its name, with the head first."""
    of_streams, of_readers = streams(), readers()
    return {
        "requests of a subtask": [
            ["in each micro-batch", "puts and lists", "gets"],
            *([what, *map(str, requests)] for what, requests in of_streams.items()),
        ],
        "prices of streams": _streams_prices(of_streams),
        "requests of readers": _readers_rows(of_readers),
        "prices of readers": _readers_prices({k: r[1] for k, r in of_readers.items()}),
    }


def _streams_prices(found: dict[str, Requests]) -> list[list[str]]:
    rows = []
    for subtasks, trigger_s in ((64, 1), (16, 1), (4, 1), (4, 10), (1, 10)):
        batches = subtasks * MONTH_S / trigger_s
        priced = [found["heap"].times(batches * factor) for factor in PROVIDERS]
        little = ("heap, a change of up to 4 KiB", "lsm")
        others = [found[what].times(batches) for what in little]
        cells = [usd_text(requests.usd) for requests in (*priced, *others)]
        rows.append([f"{subtasks}, {trigger_s} s", *cells])
    head = ["heap on S3, GCS", "on Azure", "on R2", "heap, small changes", "lsm on S3, GCS"]
    return [["subtasks, trigger", *head], *rows]


def _readers_rows(found: dict[str, list[Requests]]) -> list[list[str]]:
    rows = []
    for key, text in _READERS.items():
        lists, gets = zip(*found[key], strict=True)
        shown = f"{max(gets)}" if key == "key, lsm" else in_subtasks(gets)
        rows.append([text, in_subtasks(lists), shown])
    return [["*p*: subtasks", "puts and lists", "gets"], *rows]


def _readers_prices(found: dict[str, Requests]) -> list[list[str]]:
    a_page = found["page"].times(1 / 2).plus(found["find"].times(1 / 5))
    moves = found["move, heap"]
    uses = {
        "a follower of a stream that makes no version, every 2 s": found["look, heap"].times(1 / 2),
        "the same, every 30 s": found["look, heap"].times(1 / 30),
        "a follower that finds a new version every 2 s": moves.times(1 / 2),
        "a change feed that is read every 10 s": found["feed, heap"].times(1 / 10),
        "`forebay top`, one operator, every 2 s": found["top"].times(1 / 2),
        "the console, one operator's page open all the time, every 2 s": a_page,
    }
    rows = [
        [use, *(usd_text(each.usd * MONTH_S * factor) for factor in PROVIDERS)]
        for use, each in uses.items()
    ]
    return [["all month, 4 subtasks, heap", "S3, GCS", "Azure", "R2"], *rows]


def filled(page: str, found: Mapping[str, list[list[str]]]) -> str:
    """Return the page with its tables."""
    return _TABLE.sub(lambda match: f"{match[1]}{_markdown(found[match[2]])}{match[3]}", page)


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *body))


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
