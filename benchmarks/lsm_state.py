"""Shared parts of the lsm backend's benchmarks: a state on local files, and slow storage."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from forebay_backend_lsm import LsmBackend
from forebay_engine.compaction.process_services import service_of
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import Opening, TableSpec
from forebay_state_api.contract.changes import Changes, PointChanges, Shape
from forebay_state_api.contract.compaction_service import CompactionService
from forebay_state_api.contract.files import CommittedState, ParentState
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage
from forebay_testing.storage import WrappedStorage

OPERATOR: Final = "query/operator"
GROUPS: Final = KeyGroupRange(0, 127)
SPEC: Final = TableSpec(
    name="s",
    shape=Shape.POINT,
    kind="value",
    key=codec_for(bytes, what="key"),
    value=codec_for(bytes, what="s"),
)
CACHE_BYTES: Final = 8 << 30
UNCOMPACTED: Final[Mapping[str, Any]] = {"max-runs": 1_000, "space-amplification": 1e9}
"""Options that prevent compaction, for benchmarks that need several runs."""
REQUEST_S: Final = 0.005
_FETCHED_AT_ONCE: Final = 10
"""Ranges of one call that obstore fetches concurrently."""
_POOL: Final = random.Random(7).randbytes(1 << 20)


def key_of(number: int) -> bytes:
    """Return a key of fifteen bytes."""
    return b"user-%010d" % number


def value_of(number: int) -> bytes:
    """Return a value of sixty-four bytes, half of them random."""
    start = number * 40_503 % ((1 << 20) - 40)
    return (
        number.to_bytes(8, "big") + _POOL[start : start + 24] + b'{"count":1,"state":"abcdefghijk"'
    )


def group_of(number: int) -> int:
    """Return a key group at little cost; which one does not matter here."""
    return (number * 2_654_435_761 & 0xFFFF_FFFF) % len(GROUPS)


@attrs.define
class State:
    """A state on local files; each commit is a version."""

    folder: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    version: int = 0
    state: CommittedState = attrs.field(factory=lambda: CommittedState(files=()))

    def opening(self, storage: ObjectStorage | None = None, **options: Any) -> Opening:
        """Return the request to open the newest version."""
        parent = ParentState(
            manifest_id=str(self.version),
            range=GROUPS,
            whole=True,
            files=self.state.files,
            meta=self.state.meta,
            descriptions={SPEC.name: SPEC.description()},
        )
        return Opening(
            storage=storage or open_storage(self.folder),
            path=self.folder,
            uid="benchmark",
            version=self.version,
            range=GROUPS,
            parents=[parent] if self.version else [],
            options={**self.options, **options},
            now_us=0,
            cache_bytes=CACHE_BYTES,
        )

    def commit(self, numbers: Iterable[int], slice_cells: int = 1_000_000) -> float:
        """Write these keys; return the seconds in `apply` and `commit`."""
        backend = LsmBackend.open(self.opening())
        table = backend.table(SPEC)
        found = list(numbers)
        seconds = 0.0
        for start in range(0, len(found), slice_cells):
            changes = points(found[start : start + slice_cells])
            begun = time.perf_counter()
            table.apply(changes)
            seconds += time.perf_counter() - begun
        begun = time.perf_counter()
        self.state = backend.commit(self.version + 1)
        seconds += time.perf_counter() - begun
        self.version += 1
        backend.installed(str(self.version))
        backend.close()
        return seconds


@attrs.define
class Served(State):
    """A state whose jobs run on a thread of this process."""

    @property
    def service(self) -> CompactionService:
        """The process's compaction service."""
        return service_of("local", open_storage(self.folder))

    def opening(self, storage: ObjectStorage | None = None, **options: Any) -> Opening:
        """Return the request to open the newest version, with the service of its jobs."""
        root = open_storage(self.folder)
        return attrs.evolve(
            super().opening(storage or root.child(OPERATOR), **options),
            compaction=self.service,
            operator=OPERATOR,
        )


def points(numbers: Sequence[int]) -> Changes:
    """Return the changes that write the values of these keys."""
    keys = [key_of(number) for number in numbers]
    groups = [group_of(number) for number in numbers]
    values = [value_of(number) for number in numbers]
    return Changes(points={None: PointChanges(keys, groups, values)})


def asked(numbers: Iterable[int]) -> list[tuple[int, bytes]]:
    """Return the arguments of `Table.get_many`."""
    return [(group_of(number), key_of(number)) for number in numbers]


def five_runs(folder: str, keys: int) -> State:
    """Make a state whose keys are in five files, with a fifth of the keys each."""
    state = State(folder, options=UNCOMPACTED)
    for run in range(5):
        state.commit(range(run, keys, 5))
    return state


class SlowStorage(WrappedStorage):
    """Storage that takes 5 ms for each request, and for every ten ranges of a call."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self.ranges = 0

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.ranges += len(ranges)
        for _ in range(0, len(ranges), _FETCHED_AT_ONCE):
            time.sleep(REQUEST_S)
        return self.inner.get_ranges(name, ranges)
