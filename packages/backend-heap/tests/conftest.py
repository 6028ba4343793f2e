"""Drives the backend in tests: the parts of the engine and of the commit protocol, in short."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_heap.background_snapshots import SnapshotThread
from forebay_backend_heap.cache import ProcessCache
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import Opening, TableSpec
from forebay_state_api.contract.changes import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Shape,
)
from forebay_state_api.contract.files import CommittedState, ParentState
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import KeyGroupRange, key_group_range_of
from forebay_state_api.storage.obstore import MemoryStorage

MAX_PARALLELISM = 16
_numbers = itertools.count()


def group_of(key):
    """Return the key group of a key, by a rule that is easy to follow for ints."""
    if isinstance(key, tuple):
        return sum(map(group_of, key)) % MAX_PARALLELISM
    return (key if isinstance(key, int) else sum(map(ord, key))) % MAX_PARALLELISM


def spec(name, shape=Shape.POINT, value=None, key=int, user_key=None, *, ttl=False):
    """Return the spec of a declared state."""
    return TableSpec(
        name=name,
        shape=shape,
        kind=f"{shape.value}s",  # no backend may depend on it
        key=codec_for(key, what="key"),
        value=codec_for(value, what=name),
        user_key=codec_for(user_key, what=name) if shape is Shape.MAP else None,
        ttl=ttl,
    )


@attrs.frozen
class Manifest:
    """The manifest of one task's commit."""

    id: str
    range: KeyGroupRange
    state: CommittedState
    descriptions: Mapping[str, Any]


class CountingStorage(MemoryStorage):
    """Records reads and writes."""

    def __init__(self, url):
        super().__init__(url)
        self.reads: list[str] = []
        self.writes: list[str] = []

    def get(self, name):
        self.reads.append(name)
        return super().get(name)

    def get_ranges(self, name, ranges):
        self.reads.append(name)
        return super().get_ranges(name, ranges)

    def put(self, name, data):
        self.writes.append(name)
        super().put(name, data)

    def names(self):
        return [info.name for info in self.list("data")]


class Batch:
    """One subtask's part of a micro-batch: changes spaces as the state objects do."""

    def __init__(self, backend: HeapBackend, specs: Iterable[TableSpec]) -> None:
        self.backend = backend
        self.tables = {s.name: backend.table(s) for s in specs}

    def put(self, name, key, value, namespace=None):
        space = self.tables[name].space(namespace)
        if value is ABSENT:
            space.cells.pop(key, None)
        else:
            space.cells[key] = value
        space.dirty[key] = group_of(key)

    def append(self, name, key, elements, namespace=None, *, replace=False):
        space = self.tables[name].space(namespace)
        change = space.dirty.setdefault(key, ListChange(group_of(key)))
        if replace:
            change.replaced, change.elements = True, []
            space.cells[key] = []
        change.elements.extend(elements)
        space.cells.setdefault(key, []).extend(elements)

    def entries(self, name, key, entries, namespace=None, *, clear=False):
        space = self.tables[name].space(namespace)
        change = space.dirty.setdefault(key, MapChange(group_of(key)))
        if clear:
            change.cleared, change.entries = True, {}
            space.cells[key] = {}
        cell = space.cells.setdefault(key, {})
        for address, value in entries.items():
            change.entries[address] = value
            if value is ABSENT:
                cell.pop(address, None)
            else:
                cell[address] = value

    def hand_over(self):
        for table in self.tables.values():
            found = defaultdict(dict)
            member = {Shape.LIST: "lists", Shape.MAP: "maps"}.get(table.spec.shape, "points")
            for namespace in list(table._spaces):
                space = table.space(namespace)
                if not space.dirty:
                    continue
                if member == "points":
                    values = [space.cells.get(key, ABSENT) for key in space.dirty]
                    groups = list(space.dirty.values())
                    found[namespace] = PointChanges(list(space.dirty), groups, values)
                else:
                    found[namespace] = dict(space.dirty)
                space.dirty.clear()
            if found:
                table.apply(Changes(**{member: dict(found)}))

    def content(self, name):
        """Return (namespace, key) → content; empty lists and maps do not exist."""
        table = self.tables[name]
        return {
            (namespace, key): content
            for namespace in table._spaces
            for key, content in table.space(namespace).cells.items()
            if table.spec.shape is Shape.POINT or content
        }


class Job:
    """The versions of one operator; makes the next one. By default every file is an object."""

    def __init__(self, storage: ObjectStorage, *, path="job", options=None, cache_bytes=1 << 30):
        self.storage = storage
        self.path = path
        self.options = {"held-bytes": 0, **(options or {})}
        self.cache_bytes = cache_bytes
        self.history: list[list[Manifest]] = [[]]

    @property
    def version(self):
        return len(self.history) - 1

    def opening(self, groups: KeyGroupRange, version=None) -> Opening:
        version = self.version if version is None else version
        parents = []
        for m in self.history[version]:
            if (both := m.range.intersection(groups)) is None:
                continue
            clipped = [(f, f.range.intersection(both)) for f in m.state.files]
            parents.append(
                ParentState(
                    manifest_id=m.id,
                    range=both,
                    whole=m.range == groups,
                    files=[attrs.evolve(f, range=r) for f, r in clipped if r is not None],
                    meta=m.state.meta,
                    descriptions=m.descriptions,
                )
            )
        return Opening(
            storage=self.storage,
            path=self.path,
            uid="op",
            version=version,
            range=groups,
            parents=parents,
            options=self.options,
            now_us=0,
            cache_bytes=self.cache_bytes,
        )

    def begin(self, specs, groups=None, version=None) -> Batch:
        groups = groups or KeyGroupRange(0, MAX_PARALLELISM - 1)
        return Batch(HeapBackend.open(self.opening(groups, version)), specs)

    def end(self, batch: Batch, *, install=True) -> Manifest:
        """Commit; without ``install`` the task dies after its files are written."""
        batch.hand_over()
        opening = batch.backend._opening
        state = batch.backend.commit(opening.version + 1)
        described = {n: d for p in opening.parents for n, d in p.descriptions.items()}
        described |= {name: table.spec.description() for name, table in batch.tables.items()}
        manifest = Manifest(f"m{next(_numbers)}", opening.range, state, described)
        if install:
            batch.backend.installed(manifest.id)
        batch.backend.close()
        return manifest

    def commit(self, batch: Batch) -> CommittedState:
        """Commit a version with a single subtask."""
        manifest = self.end(batch)
        self.history.append([manifest])
        return manifest.state

    def ranges(self, parallelism):
        return [key_group_range_of(i, parallelism, MAX_PARALLELISM) for i in range(parallelism)]


class HeldBack:
    """A pool of threads whose work a test runs, or forgets as a process that dies."""

    def __init__(self):
        self.work = []

    def do_if_possible(self, work):
        self.work.append(work)
        return True

    def run(self):
        while self.work:
            self.work.pop(0)()


class Process(ProcessCache):
    """The memory of a worker process: its cache, and its background snapshots."""

    def __init__(self):
        super().__init__()
        self.background = HeldBack()
        self.snapshots = SnapshotThread(self.background)


@pytest.fixture
def process(monkeypatch):
    """Return a function that simulates a new worker process, or continues one, and returns it."""

    def start(cache=None):
        cache = cache or Process()
        monkeypatch.setattr("forebay_backend_heap.backend.CACHE", cache)
        monkeypatch.setattr("forebay_backend_heap.backend.THREAD", lambda: cache.snapshots)
        return cache

    start()
    return start


@pytest.fixture
def storage():
    return CountingStorage(f"memory://heap{next(_numbers)}")


@pytest.fixture
def job(storage, process):
    return Job(storage)


class Kit:
    """The helpers by name, for tests that cannot import a conftest."""

    Batch = Batch
    CountingStorage = CountingStorage
    Process = Process
    Job = Job
    Manifest = Manifest
    MAX_PARALLELISM = MAX_PARALLELISM
    group_of = staticmethod(group_of)
    spec = staticmethod(spec)

    def __init__(self, process):
        self.new_process = process

    @staticmethod
    def committed(files):
        """Return the state that a manifest of these files records."""
        return CommittedState(files=files)


@pytest.fixture
def kit(process):
    return Kit(process)
