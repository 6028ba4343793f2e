"""What the state objects of all kinds share: a table's spaces, and which one is current."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from forebay_state_api.backend import Changes, Scan, Space, Table, TableSpec
from forebay_state_api.futures import StateFuture, completed_future
from forebay_state_api.iterators import StateIterator

if TYPE_CHECKING:
    from forebay_state_api._engine.engine import Engine
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.descriptors import StateDescriptor

_log = logging.getLogger(__name__)

_warned: set[str] = set()
"""Operators that were warned about synchronous accesses that wait, in this process."""


class KeyedState:
    """A state object: bound to the cells of the current namespace of one table.

    ``_cells`` and ``_dirty`` are the current `Space`'s dictionaries, kept as attributes because
    every access needs them. ``codec`` is that of the values that the user sees; the table's own,
    in ``spec``, may be one derived from it.
    """

    __slots__ = (
        "_admit",
        "_cells",
        "_complete",
        "_context",
        "_descriptor",
        "_dirty",
        "_engine",
        "_hand_out",
        "_namespace",
        "_spec",
        "_table",
        "spaces",
    )

    def __init__(
        self,
        engine: Engine,
        descriptor: StateDescriptor,
        spec: TableSpec,
        table: Table,
        codec: ValueCodec,
    ) -> None:
        self._engine = engine
        self._context = engine.context
        self._descriptor = descriptor
        self._spec = spec
        self._table = table
        self._admit = codec.admit
        self._hand_out = codec.hand_out
        self.spaces: dict[Any, Space] = {}
        self.bind(None)

    def space_of(self, namespace: Any) -> Space:
        """The space of ``namespace``, in use from now on."""
        space = self.spaces.get(namespace)
        if space is None:
            space = self.spaces[namespace] = self._table.space(namespace)
        return space

    def bind(self, namespace: Any) -> None:
        """Make ``namespace`` the one that accesses belong to."""
        space = self.space_of(namespace)
        self._namespace = namespace
        self._complete = space.complete
        self._cells = space.cells
        self._dirty = space.dirty

    def changes(self) -> Changes:
        """What was written and not handed over yet."""
        raise NotImplementedError

    def _waits(self) -> None:
        """A synchronous access has to wait for storage."""
        self._engine.sync_waits += 1
        uid = self._context._operator_uid
        if self._engine.scheduler.counters.requests and uid not in _warned:
            _warned.add(uid)
            message = (
                f"operator {uid!r} mixes asynchronous state accesses with synchronous ones that "
                f"have to wait (state {self._spec.name!r}); each stops all records of its subtask"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=4)


class Pages:
    """The pages of one iteration: of a list in memory, or of a `Scan` with what was written since.

    ``shape`` turns a stored element into what the user sees; it copies what is mutable.
    """

    __slots__ = ("_content", "_engine", "_open", "_shape", "_size")

    def __init__(self, engine: Engine, content: Content, shape: Any) -> None:
        self._engine = engine
        self._content = content
        self._shape = shape
        self._size = engine.settings.page_size
        self._open: Iterator[list[Any]] | None = None

    def iterator(self) -> StateFuture[StateIterator[Any]]:
        """A future of an iterator whose first page is loaded."""
        return self.page(0).then_apply(
            lambda first: StateIterator(self, first[0], first_is_last=first[1])
        )

    def page(self, number: int) -> StateFuture[tuple[list[Any], bool]]:
        """Page ``number`` and whether it is the last."""
        if self._content.in_memory:
            return completed_future(self._load(number))
        return self._engine.scheduler.read(
            self, _load_pages, None, (self, number), lambda answer: answer
        )

    def _load(self, number: int) -> tuple[list[Any], bool]:
        elements, last = self._content.page(number, self._size)
        shape = self._shape
        return (elements if shape is None else [shape(element) for element in elements]), last


def _load_pages(_: Any, wanted: list[tuple[Pages, int]]) -> list[tuple[list[Any], bool]]:
    return [pages._load(number) for pages, number in wanted]


class Content:
    """Elements in memory, as they stood when the iteration was requested."""

    in_memory = True

    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements

    def page(self, number: int, size: int) -> tuple[list[Any], bool]:
        """Page ``number``, and whether it is the last."""
        start = number * size
        return self._elements[start : start + size], start + size >= len(self._elements)


class ScannedContent(Content):
    """Elements of a `Scan`, some of them hidden, followed by elements in memory.

    Pages are taken in order; going back to an earlier one starts the scan anew.
    """

    in_memory = False

    def __init__(self, scan: Scan, hidden: Any, added: list[Any]) -> None:
        super().__init__(added)
        self._scan = scan
        self._hidden = hidden
        self._next = 0
        self._rest: Iterator[Any] = iter(())
        self._ahead: list[Any] = []

    def page(self, number: int, size: int) -> tuple[list[Any], bool]:
        if number == 0 or number != self._next:
            self._rest = self._all(size)
            self._ahead = list(itertools.islice(self._rest, number * size + size))[number * size :]
        elements = self._ahead
        self._ahead = list(itertools.islice(self._rest, size))
        self._next = number + 1
        return elements, not self._ahead

    def _all(self, size: int) -> Iterator[Any]:
        hidden = self._hidden
        for elements in self._scan.pages(size):
            yield from elements if hidden is None else hidden(elements)
        yield from self._elements


def everything(scan: Scan, size: int) -> Iterable[Any]:
    """All elements of a scan."""
    return itertools.chain.from_iterable(scan.pages(size))
