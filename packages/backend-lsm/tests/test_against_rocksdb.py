"""Compares the backend with RocksDB: the same writes and reads, and failures at any put."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import partial

import pytest
import rocksdict
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forebay_backend_lsm.cache import CACHE
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.errors import StorageError
from forebay_testing import Crash, Fault, FaultKind, FaultyStorage, ImmediateCompaction
from forebay_testing.backends.subject import memory_storage

pytestmark = pytest.mark.long

MINUTE_US = 60_000_000
KEYS = st.integers(0, 40).map(lambda n: f"key {n}")
FEW = st.integers(0, 3).map(lambda n: f"key {n}")
ENTRIES = st.sampled_from(["", "a", "aa", "b"])
TEXTS = st.integers(0, 9).map(lambda n: str(n) * 7 * n)
OPTIONS = {
    "block-bytes": st.just(512),
    "block-cache-bytes": st.sampled_from([0, 1 << 14, 1 << 28]),
    "max-runs": st.sampled_from([3, 10]),
    "memtable-bytes": st.sampled_from([1, 500, 1 << 20]),
    "target-file-bytes": st.sampled_from([1, 1 << 20]),
}
FAULTS = st.builds(
    Fault,
    operation=st.just("put*"),
    kind=st.sampled_from([FaultKind.BEFORE, FaultKind.AFTER, FaultKind.TORN]),
    skip=st.integers(0, 4),
    error=st.sampled_from([Crash, partial(StorageError, "injected by the test")]),
)


class Oracle:
    """RocksDB with one cell for each value, list and map entry; a batch can be undone."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        self.cells = rocksdict.Rdict(self.folder, rocksdict.Options(raw_mode=True))
        self.before = {}
        """The content, at the beginning of the batch, of the cells that it has changed."""

    def close(self):
        self.cells.close()
        shutil.rmtree(self.folder)

    def get(self, *parts):
        stored = self.cells.get(cell(*parts))
        return ABSENT if stored is None else json.loads(stored)

    def set(self, value, *parts):
        self.before.setdefault(cell(*parts), self.cells.get(cell(*parts)))
        self._put(cell(*parts), None if value is ABSENT else json.dumps(value).encode())

    def entries(self, key):
        """Return user key → value of one map."""
        prefix = cell("m", key, "")
        found = [each for each in self.cells.items() if each[0].startswith(prefix)]
        return {name[len(prefix) :].decode(): json.loads(value) for name, value in found}

    def commit(self):
        self.before = {}
        self.cells.flush()

    def undo(self):
        for name, stored in self.before.items():
            self._put(name, stored)
        self.before = {}

    def _put(self, name, stored):
        if stored is None:
            self.cells.delete(name)
        else:
            self.cells[name] = stored


def cell(*parts):
    return "\0".join(parts).encode()


class Machine(RuleBasedStateMachine):
    """Micro-batches of one subtask: a value ``v``, a list ``l`` and a map ``m`` per key.

    If a put fails, the batch fails or its process dies; files that no manifest names are lost.
    """

    kit = new_operator = None

    def __init__(self):
        super().__init__()
        CACHE.clear()
        self.oracle = Oracle()
        self.root = FaultyStorage(memory_storage())
        self.specs = {
            "v": self.kit.spec("v", value=str),
            "l": self.kit.spec("l", Shape.LIST),
            "m": self.kit.spec("m", Shape.MAP, value=int | None),
        }
        self.now_us = MINUTE_US
        self.attempts = 0
        self.jobs = []
        """Services and the jobs submitted to them."""
        self.waiting = []
        """Those that have not run: a prefix is written to only once."""

    def teardown(self):
        self.oracle.close()

    @initialize(options=st.fixed_dictionaries(OPTIONS))
    def begin(self, options):
        self.operator = self.new_operator(self.root.child("operator"))
        self.operator.options = options
        self.new_process()

    @rule(fault=FAULTS)
    def break_storage(self, fault):
        self.root.faults[:] = [fault]

    @rule()
    def new_process(self):
        """Lose everything uncommitted; only the old process knows the jobs."""
        CACHE.clear()
        self.service = ImmediateCompaction(self.root, lambda _: LsmCompactor(), hold=True)
        self.batch_again()

    def batch_again(self):
        """Begin the batch again from the committed state, in the same process."""
        self.oracle.undo()
        self.open()

    def failed(self, failure):
        if isinstance(failure, Crash):
            self.new_process()
        else:
            self.batch_again()

    def open(self):
        self.views = []
        self.backend = self.operator.open(
            now_us=self.now_us, compaction=self.service, operator="operator"
        )

    # -- writes -------------------------------------------------------------------------------

    @rule(values=st.dictionaries(FEW | KEYS, TEXTS | st.just(ABSENT), min_size=1, max_size=40))
    def put(self, values):
        for key, value in values.items():
            self.oracle.set(value, "v", key)
        self.apply("v", self.kit.points(values))

    @rule(added=st.dictionaries(FEW, st.lists(st.integers(0, 9), max_size=3), min_size=1))
    def append(self, added):
        for key, elements in added.items():
            before = self.oracle.get("l", key)
            after = [*([] if before is ABSENT else before), *elements]
            self.oracle.set(after or ABSENT, "l", key)
        self.apply("l", self.kit.appended(added))

    @rule(lists=st.dictionaries(FEW, st.lists(st.integers(0, 9), max_size=3), min_size=1))
    def replace(self, lists):
        for key, elements in lists.items():
            self.oracle.set(elements or ABSENT, "l", key)
        self.apply("l", self.kit.appended(lists, replaced=True))

    @rule(
        maps=st.dictionaries(
            FEW,
            st.dictionaries(ENTRIES, st.none() | st.integers(0, 9) | st.just(ABSENT)),
            min_size=1,
        ),
        cleared=st.booleans(),
    )
    def enter(self, maps, cleared):
        for key, entries in maps.items():
            for entry in self.oracle.entries(key) if cleared else ():
                self.oracle.set(ABSENT, "m", key, entry)
            for entry, value in entries.items():
                self.oracle.set(value, "m", key, entry)
        self.apply("m", self.kit.entered(maps, cleared=cleared))

    def apply(self, name, changes):
        """Apply changes; a table that outgrows its memory spills, which may kill the process."""
        try:
            self.backend.table(self.specs[name]).apply(changes)
        except (Crash, StorageError) as failure:
            self.failed(failure)

    # -- commits and compactions --------------------------------------------------------------

    @rule(
        minutes=st.sampled_from([0, 1, 30]),
        acknowledged=st.sampled_from([True, True, True, False]),
        at_once=st.booleans(),
    )
    def commit(self, minutes, acknowledged, at_once):
        """Commit; unless ``acknowledged``, the process dies unaware that the manifest is durable.

        Compactions run ``at_once``, or when `compact` is called.
        """
        self.now_us += minutes * MINUTE_US
        self.attempts += 1
        try:
            made = self.backend.commit(self.operator.version + 1)
            self.put_manifest(made)
        except (Crash, StorageError) as failure:
            return self.failed(failure)
        if not acknowledged:
            return self.new_process()
        self.backend.installed(str(self.operator.version))
        known = [job for _, job in self.jobs]
        new = [(self.service, job) for job in self.service.submitted if job not in known]
        self.jobs += new
        if not at_once:
            self.waiting += new
        for job in new if at_once else ():
            self.run(*job)
        self.backend.close()
        return self.open()

    def put_manifest(self, made):
        """Put the manifest; the version exists once it is complete, even if the put then fails."""
        name, content = f"manifest-{self.attempts}", b"all of it"
        try:
            self.operator.storage.put(name, content)
        finally:
            sizes = {info.name: info.size for info in self.operator.storage.list()}
            if sizes.get(name) == len(content):
                self.operator.install(made, self.specs.values())
                self.oracle.commit()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def compact(self, data):
        """Run a job late, even if it has been resubmitted since under another prefix."""
        place = data.draw(st.integers(0, len(self.waiting) - 1))
        self.run(*self.waiting.pop(place))

    def run(self, service, job):
        """Run a job; a worker may die of it, and the operator continues."""
        try:
            service.run(job)
        except Crash:
            service.forget()
        if service.poll(job.id).phase is CompactionPhase.FAILED:
            service.forget()

    # -- reads --------------------------------------------------------------------------------

    @rule(keys=st.lists(FEW | KEYS, min_size=1))
    def get_many(self, keys):
        asked = [(self.kit.group_of(key), key) for key in keys]
        found = self.backend.table(self.specs["v"]).get_many(None, asked)
        assert found == [self.oracle.get("v", key) for key in keys]

    @rule(cells=st.lists(st.tuples(FEW, ENTRIES), min_size=1, max_size=20))
    def get_entries(self, cells):
        asked = [(self.kit.group_of(key), key, entry) for key, entry in cells]
        found = self.backend.table(self.specs["m"]).get_entries(None, asked)
        assert found == [self.oracle.get("m", key, entry) for key, entry in cells]

    @rule(key=FEW, page_size=st.sampled_from([1, 2, 100]))
    def scan(self, key, page_size):
        """Keep a scan for `look_again`: later writes do not show in it."""
        elements = self.oracle.get("l", key)
        for name, expected in (
            ("l", [] if elements is ABSENT else elements),
            ("m", self.oracle.entries(key)),
        ):
            view = self.backend.table(self.specs[name]).scan(None, self.kit.group_of(key), key)
            self.views.append((view, page_size, expected))
        for view in self.views[-2:]:
            check(*view)

    @precondition(lambda self: self.views)
    @rule()
    def look_again(self):
        for view in self.views:
            check(*view)


def check(view, page_size, expected):
    pages = [*view.pages(page_size)]
    assert all(len(page) <= page_size for page in pages)
    found = [one for page in pages for one in page]
    assert (found if isinstance(expected, list) else dict(found)) == expected
    assert len(found) == len(expected)


@pytest.mark.hypothesis
@pytest.mark.timeout(300)
def test_openings_say_what_rocksdb_says(kit, new_operator):
    machine = type("Bound", (Machine,), {"kit": kit, "new_operator": staticmethod(new_operator)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings().max_examples // 4,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
