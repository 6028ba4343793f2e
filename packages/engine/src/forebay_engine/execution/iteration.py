"""Iterations over elements in memory, or over a `Scan` and the writes since.

An iteration is a snapshot: its content is fixed when it is requested, on the task thread; only its
pages are loaded later, on another thread.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.execution.request_futures import AnsweredRead
from forebay_state_api.contract.backend import Scan
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost

_FIRST_FEW: Final = 8
"""Size of pages of which usually the first element alone is needed."""

Filter = Callable[[list[Any]], list[Any]]


class Content:
    """Elements in memory, as they were when the iteration was requested."""

    in_memory = True

    def __init__(self, elements: list[Any]) -> None:
        self.elements = elements

    def all(self, page_size: int) -> Iterable[Any]:
        """Return all elements; each call starts from the beginning."""
        del page_size
        return self.elements


class ScannedContent(Content):
    """Elements of a `Scan`, some of them hidden, and elements in memory."""

    in_memory = False

    def __init__(
        self,
        scan: Scan,
        hidden: Filter | None,
        added: list[Any],
        part: KeyRange | None = None,
    ) -> None:
        """The elements in memory follow the scan's, unless both are in ``part``'s order."""
        super().__init__(added)
        self._scan = scan
        self._hidden = hidden
        self._part = part

    def all(self, page_size: int) -> Iterator[Any]:
        part, scanned = self._part, self._scanned(page_size)
        if part is None or not self.elements:
            return itertools.chain(scanned, self.elements)
        return heapq.merge(scanned, self.elements, key=part.order, reverse=part.descending)

    def _scanned(self, page_size: int) -> Iterator[Any]:
        hidden = self._hidden
        for page in self._scan.pages(page_size):
            yield from page if hidden is None else hidden(page)

    def only(self, visible: Filter) -> ScannedContent:
        """Return the same content, filtered by ``visible``."""
        hidden = self._hidden

        def both(page: list[Any]) -> list[Any]:
            return visible(page if hidden is None else hidden(page))

        return ScannedContent(self._scan, both, visible(self.elements), self._part)


class PagedIteration:
    """The pages of one iteration, for one consumer after another."""

    __slots__ = ("_content", "_host", "_shape", "_spare")

    def __init__(
        self, host: StateHost, content: Content, shape: Callable[[Any], Any] | None
    ) -> None:
        """``shape`` converts a stored element for the user, and copies mutable parts."""
        self._host = host
        self._content = content
        self._shape = shape
        self._spare: PageCursor | None = None

    def iterator(self, ask: Callable[[StateIterator[Any]], Any]) -> StateFuture[Any]:
        """Return a future of ``ask(iterator)``, called when the first page is loaded."""
        scheduler = self._host.scheduler
        if self._content.in_memory:
            return scheduler.answer(ask(self.in_memory()), AnsweredRead)
        cursor = self._spare = PageCursor(self._host, self._content)
        return scheduler.read(
            cursor, _load_pages, None, cursor, lambda first: ask(self._begun(first))
        )

    def in_memory(self) -> StateIterator[Any]:
        """Return an iterator over a content in memory."""
        cursor = self._spare = PageCursor(self._host, self._content)
        return self._begun(cursor.load())

    def after_first_page(self) -> PageCursor:
        """Return a cursor that starts at the second page."""
        cursor, self._spare = self._spare, None
        if cursor is None:
            size = self._host.settings.page_size
            cursor = PageCursor(self._host, self._content, skip=size)
        return cursor

    def _begun(self, first: tuple[list[Any], bool]) -> StateIterator[Any]:
        return StateIterator(self, first[0], first_is_last=first[1], shape=self._shape)


class PageCursor:
    """One pass over a content; pages that are not in memory are loaded on a backend thread."""

    __slots__ = ("_elements", "_host", "_in_memory")

    def __init__(self, host: StateHost, content: Content, skip: int = 0) -> None:
        self._host = host
        self._in_memory = content.in_memory
        elements = iter(content.all(host.settings.page_size))
        self._elements = itertools.islice(elements, skip, None) if skip else elements

    def next_page(self) -> StateFuture[tuple[list[Any], bool]]:
        """Return the next page and whether it is the last; an empty page may follow a full one."""
        if self._in_memory:
            return self._host.scheduler.answer(self.load())
        return self._host.scheduler.read(self, _load_pages, None, self, identity)

    def load(self) -> tuple[list[Any], bool]:
        """Load a page; may wait for storage."""
        size = self._host.settings.page_size
        elements = list(itertools.islice(self._elements, size))
        return elements, len(elements) < size


def load_whole(_: Any, contents: list[tuple[Content, int]]) -> list[list[Any]]:
    """Return all elements of each (content, page size)."""
    return [list(content.all(size)) for content, size in contents]


def up_to(entries: Iterable[Any], shows: Callable[[Any], bool]) -> list[Any]:
    """Return all entries up to the first one whose value a read sees."""
    passed: list[Any] = []
    for entry in entries:
        passed.append(entry)
        if shows(entry[1]):
            break
    return passed


def load_up_to(_: Any, asked: list[tuple[Content, Callable[[Any], bool]]]) -> list[list[Any]]:
    """Return `up_to` of each (content, function)."""
    return [up_to(content.all(_FIRST_FEW), shows) for content, shows in asked]


def _load_pages(_: Any, cursors: list[PageCursor]) -> list[tuple[list[Any], bool]]:
    return [cursor.load() for cursor in cursors]


def identity(answer: Any) -> Any:
    """Return ``answer`` unchanged."""
    return answer
