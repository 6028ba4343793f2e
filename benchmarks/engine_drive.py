"""The engine over the heap backend without Spark, as the other benchmarks drive it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.data import Event
from forebay_backend_heap import HeapBackend
from forebay_state_api._engine.engine import Engine, EngineSettings
from forebay_state_api.backend import CommittedState, Opening, ParentState
from forebay_state_api.codecs import codec_for
from forebay_state_api.context import RuntimeContext
from forebay_state_api.keys import KeyGroupRange, key_group_of
from forebay_state_api.storage import open_storage

MAX_PARALLELISM: Final = 128
RANGE: Final = KeyGroupRange(0, MAX_PARALLELISM - 1)
MANIFEST: Final = "0" * 32
"""The manifest's identity, where a benchmark has made a version by hand."""
CACHE_BYTES: Final = 1 << 30


class EngineDrive:
    """One function over one opened heap backend; the rows of a micro-batch at a time."""

    def __init__(self, function: Any, backend: HeapBackend) -> None:
        self._backend = backend
        self._groups: dict[str, int] = {}
        context = RuntimeContext(
            operator_uid="bench",
            subtask_index=0,
            parallelism=1,
            max_parallelism=MAX_PARALLELISM,
            attempt_number=0,
            batch_id=0,
        )
        self.engine = Engine(
            function,
            backend,
            context,
            key_codec=codec_for(str, what="the key"),
            now_us=time.time_ns() // 1000,
            settings=EngineSettings(),
        )
        self.engine.open()

    def columns_of(self, rows: Sequence[Event]) -> tuple[list[str], list[int]]:
        """Give the keys and key groups of rows, which on Spark arrive as columns."""
        keys = [row.user for row in rows]
        groups = self._groups
        for key in keys:
            if key not in groups:
                groups[key] = key_group_of(key, MAX_PARALLELISM)
        return keys, [groups[key] for key in keys]

    def __call__(
        self, rows: Sequence[Event], keys: Sequence[str], groups: Sequence[int]
    ) -> list[Any]:
        """Process a micro-batch to its end and give its output; nothing is committed."""
        self.engine.process(rows, keys, groups)
        self.engine.drain()
        return self.engine.take_rows()

    def commit(self) -> CommittedState:
        """Make version 1 durable."""
        self.engine.finish()
        return self._backend.commit(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.engine.close(failed=error is not None)
        self._backend.close()


def open_heap(url: str, parent: ParentState | None = None) -> HeapBackend:
    """Open an empty state below ``url``, or the version that ``parent`` describes."""
    opening = Opening(
        storage=open_storage(url),
        path=url,
        uid="bench",
        version=0 if parent is None else 1,
        range=RANGE,
        parents=() if parent is None else (parent,),
        options={},
        now_us=time.time_ns() // 1000,
        cache_bytes=CACHE_BYTES,
    )
    return HeapBackend.open(opening)


def parent_of(drive: EngineDrive, committed: CommittedState) -> ParentState:
    """Describe a commit as the manifest would, for the opening that follows."""
    return ParentState(
        manifest_id=MANIFEST,
        range=RANGE,
        whole=True,
        files=committed.files,
        meta=committed.meta,
        descriptions=drive.engine.descriptions(),
    )
