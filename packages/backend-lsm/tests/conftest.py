"""Shared by the backend's tests: makes an operator's versions step by step, on counting storage."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import attrs
import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_engine.codecs.ordered import ordered_codec
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import Opening, TableSpec
from forebay_state_api.contract.changes import Changes, ListChange, MapChange, PointChanges, Shape
from forebay_state_api.contract.files import CommittedState, ParentState
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import CountingStorage

GROUPS = KeyGroupRange(0, 15)
LOOSE = {"max-runs": 1000, "space-amplification": 1e9, "block-bytes": 512}
"""Options for no compaction, and for many small blocks."""
_numbers = itertools.count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the cases and rows as slow that a class of the kit lists in ``slow_cases``."""
    missing = {}
    for item in items:
        cls = getattr(item, "cls", None)
        slow_cases = getattr(cls, "slow_cases", frozenset())
        names = {item.name, getattr(item, "originalname", item.name)}
        missing.setdefault(cls, set(slow_cases)).difference_update(names)
        if names & slow_cases:
            item.add_marker(pytest.mark.slow)
    if not any("::" in arg for arg in config.args):  # of a whole file, every case is collected
        for cls, names in missing.items():
            if names:
                raise pytest.UsageError(f"{cls.__name__}.slow_cases: no case is {sorted(names)}")


def group_of(key):
    return sum(map(ord, str(key))) % 16


def spec(
    name="s", shape=Shape.POINT, value=int, key=str, user_key=str, *, ttl=False, ordered=False
):
    codec = codec_for(user_key, what=name) if shape is Shape.MAP else None
    return TableSpec(
        name=name,
        shape=shape,
        kind=f"{shape.value}s",  # no backend may depend on it
        key=codec_for(key, what="key"),
        value=codec_for(value, what=name),
        user_key=ordered_codec(codec) if ordered else codec,
        ordered=ordered,
        ttl=ttl,
    )


def points(values, namespace=None):
    keys = [*values]
    return Changes(
        points={namespace: PointChanges(keys, [*map(group_of, keys)], [*values.values()])}
    )


def appended(elements, namespace=None, *, replaced=False):
    found = {
        key: ListChange(group_of(key), replaced=replaced, elements=[*added])
        for key, added in elements.items()
    }
    return Changes(lists={namespace: found})


def entered(entries, namespace=None, *, cleared=False):
    found = {
        key: MapChange(group_of(key), cleared=cleared, entries=dict(values))
        for key, values in entries.items()
    }
    return Changes(maps={namespace: found})


@attrs.define
class Operator:
    """Versions of one operator, each derived from the previous one."""

    options: dict
    storage: CountingStorage
    version: int = 0
    range: KeyGroupRange = GROUPS
    parents: list = attrs.field(factory=list)
    last: CommittedState = attrs.field(factory=lambda: CommittedState(files=()))

    def opening(self, **changed):
        given = {
            "storage": self.storage,
            "path": self.storage.url,
            "uid": "operator",
            "version": self.version,
            "range": self.range,
            "parents": self.parents,
            "options": self.options,
            "now_us": 1,
            "cache_bytes": 1 << 30,
        }
        return Opening(**{**given, **changed})

    def open(self, **changed):
        return LsmBackend.open(self.opening(**changed))

    def table(self, declared):
        return self.open().table(declared)

    def commit(self, *changes, install=True):
        """Commit a version with (spec, changes) pairs."""
        backend = self.open()
        for declared, change in changes:
            backend.table(declared).apply(change)
        self.install(backend.commit(self.version + 1), [declared for declared, _ in changes])
        if install:
            backend.installed(str(self.version))
        backend.close()

    def install(self, made, specs):
        """Make a backend's commit the newest version."""
        known = dict(self.parents[0].descriptions) if self.parents else {}
        self.last = made
        self.version += 1
        self.parents = [
            ParentState(
                manifest_id=str(self.version),
                range=self.range,
                whole=True,
                files=made.files,
                meta=made.meta,
                descriptions=known | {spec.name: spec.description() for spec in specs},
            )
        ]

    def read(self, declared, keys, namespace=None):
        asked = [(group_of(key), key) for key in keys]
        return self.table(declared).get_many(namespace, asked)

    def scanned(self, declared, key, namespace=None, page_size=7):
        scan = self.table(declared).scan(namespace, group_of(key), key)
        return [*itertools.chain.from_iterable(scan.pages(page_size))]


@pytest.fixture
def kit():
    return SimpleNamespace(
        GROUPS=GROUPS,
        appended=appended,
        entered=entered,
        group_of=group_of,
        points=points,
        spec=spec,
    )


@pytest.fixture
def new_operator():
    def make(storage=None, **options):
        inner = storage or MemoryStorage(f"memory://lsm-{next(_numbers)}")
        given = {name.replace("_", "-"): value for name, value in options.items()}
        return Operator({**LOOSE, **given}, CountingStorage(inner))

    return make


@pytest.fixture(autouse=True)
def _empty_cache():
    CACHE.clear()
