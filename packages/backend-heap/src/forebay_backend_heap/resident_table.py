"""`ResidentTable`: an in-memory table that files are read into and written from."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from forebay_backend_heap.expiry import GroupedKeys, Walk
from forebay_backend_heap.files import Section
from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.backend import Table, TableSpec
from forebay_state_api.contract.expiry import Deadline


class ResidentTable(Table):
    """All cells of one state in memory."""

    spec: TableSpec
    replaces_columns = False
    """Whether columns cannot hold the cells, although the run reads them so."""
    removed = 0
    """Cells that were deleted since `begin_count`."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._walk = Walk()
        self._held_before = 0
        self._left_off: int | None = None
        """`swept` of an earlier process, until a sweep resumes there."""

    def begin_count(self) -> None:
        """Count new and removed cells from now on."""
        self._held_before, self.removed = len(self), 0

    @property
    def new(self) -> int:
        """Cells that were created since `begin_count`, including cells that were deleted again."""
        return len(self) - self._held_before + self.removed

    @property
    def swept(self) -> int:
        """The start of the next sweep: the number of remaining keys that were swept already."""
        return self._passed() if self._left_off is None else self._left_off

    @swept.setter
    def swept(self, keys: int) -> None:
        self._left_off = keys

    def _wrote(self, oldest_us: int, *, everything: bool = False) -> None:
        """Record the oldest time in sections that the table has read or written.

        With ``everything`` the table holds nothing else.
        """
        if self.spec.ttl:
            record = self._walk.wrote_all if everything else self._walk.wrote
            record(oldest_us)

    @abc.abstractmethod
    def replay(self, sections: Sequence[Section]) -> None:
        """Apply sections of files, oldest first.

        Raises `StateMigrationError` if the spec does not fit one of them.
        """

    @property
    @abc.abstractmethod
    def pending_cells(self) -> int:
        """Cells changed since the last commit."""

    @abc.abstractmethod
    def changed(self, groups: KeyGroupRange) -> list[Section]:
        """Return sections of the changes since the last commit, of a writer of ``groups``."""

    @abc.abstractmethod
    def everything(
        self, groups: KeyGroupRange, pause: Callable[[], object] = lambda: None
    ) -> list[Section]:
        """Return sections of all cells; calls ``pause`` before each chunk."""

    @abc.abstractmethod
    def clean_up(self, deadline: Deadline, groups: KeyGroupRange) -> list[Section]:
        """Drop all expired content; return the sections that drop it elsewhere."""

    @abc.abstractmethod
    def drop(self, keys: GroupedKeys, until_us: int, groups: KeyGroupRange) -> list[Section]:
        """Drop content whose time is ``until_us`` or older from the cells of some keys.

        Returns the sections that drop it elsewhere.
        """

    @abc.abstractmethod
    def frozen(self) -> ResidentTable:
        """Return a table of the same cells, which later changes of this one leave alone."""

    @abc.abstractmethod
    def thaw(self) -> None:
        """Forget the cells of a frozen table."""

    @abc.abstractmethod
    def settled(self) -> None:
        """Forget which cells were changed: the commit is durable."""

    @abc.abstractmethod
    def memory_size(self) -> int:
        """Estimate the bytes of memory that the cells take."""

    @abc.abstractmethod
    def _passed(self) -> int:
        """Return how many of the remaining keys the current walk has swept."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of cells."""
