"""Runs a subtask on the heap backend without Spark, for the other benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.data import Event
from forebay_backend_heap import HeapBackend
from forebay_engine.isolation.failed_record import ErrorRows
from forebay_state_api.keys import key_group_of
from forebay_state_api.settings import EngineSettings
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob

MAX_PARALLELISM: Final = 128


class EngineDrive:
    """Runs one function in one subtask, one micro-batch of rows at a time.

    ``url`` is the state directory, in which ``versions`` versions have been committed. With
    ``error_rows`` records fail alone; ``settings`` are the engine's.
    """

    def __init__(
        self,
        function: Any,
        url: str,
        versions: int = 0,
        *,
        error_rows: ErrorRows | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        job = KeyedJob(
            HeapBackend,
            open_storage(url),
            max_parallelism=MAX_PARALLELISM,
            key_type=str,
            error_rows=error_rows,
            settings=settings,
        )
        job.batch_id = versions
        self.subtask = job.subtask(function)
        self._groups: dict[str, int] = {}

    def columns_of(self, rows: Sequence[Event]) -> tuple[list[str], list[int]]:
        """Return the keys and key groups of rows, which on Spark arrive as columns."""
        keys = [row.user for row in rows]
        groups = self._groups
        for key in keys:
            if key not in groups:
                groups[key] = key_group_of(key, MAX_PARALLELISM)
        return keys, [groups[key] for key in keys]

    def __call__(
        self, rows: Sequence[Event], keys: Sequence[str], groups: Sequence[int]
    ) -> Sequence[Any]:
        """Process a micro-batch completely and return its output, without a commit."""
        self.subtask.process(rows, keys, groups)
        self.subtask.drain()
        return self.subtask.take_rows()

    def __enter__(self) -> Self:
        self.subtask.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.subtask.close(failed=error is not None)
