"""Compares files and merging with RocksDB: the same writes, flushes and reads at every step."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pytest
import rocksdict
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.files import SortedFile

PUT, DELETE, APPEND, CLEAR = range(4)
KEYS = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(bytes)
ENTRIES = st.integers(0, 4).map(lambda i: bytes([i]))
VALUES = st.binary(min_size=1, max_size=5)
EXAMPLES = settings().max_examples
"""Half of them are tried by default, all in a search."""


class Machine(RuleBasedStateMachine):
    """A list table ``l`` and a map table ``m``; RocksDB puts whole lists, and has no clear."""

    model = None

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp()
        options = rocksdict.Options(raw_mode=True)
        self.oracle = rocksdict.Rdict(self.folder, options)
        self.storage = self.model.new_storage()
        self.files = []
        self.unflushed = {"l": {}, "m": {}}
        self.jobs = 0

    def teardown(self):
        self.oracle.close()
        shutil.rmtree(self.folder)

    @initialize(block_bytes=st.sampled_from([1, 50, 32768]), size=st.sampled_from([1, 150, 9999]))
    def begin(self, block_bytes, size):
        self.options = {"block_bytes": block_bytes}
        self.target_bytes = size

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.unflushed["l"][key] = (PUT, value, 0)
        self.oracle[b"l" + key] = value

    @rule(key=KEYS, value=VALUES)
    def append(self, key, value):
        kind, before, _ = self.unflushed["l"].get(key, (APPEND, b"", 0))
        kind = PUT if kind == DELETE else kind
        self.unflushed["l"][key] = (kind, before + value, 0)
        self.oracle[b"l" + key] = (self.oracle.get(b"l" + key) or b"") + value

    @rule(key=KEYS)
    def delete(self, key):
        self.unflushed["l"][key] = (DELETE, b"", 0)
        self.oracle.delete(b"l" + key)

    @rule(key=KEYS, entry=ENTRIES, value=VALUES)
    def put_entry(self, key, entry, value):
        self.unflushed["m"][key + entry] = (PUT, value, 0)
        self.oracle[b"m" + key + entry] = value

    @rule(key=KEYS, entry=ENTRIES)
    def remove_entry(self, key, entry):
        self.unflushed["m"][key + entry] = (DELETE, b"", 0)
        self.oracle.delete(b"m" + key + entry)

    @rule(key=KEYS)
    def clear(self, key):
        waiting = self.unflushed["m"]
        for cell in [cell for cell in waiting if cell.startswith(key)]:
            del waiting[cell]
        waiting[key] = (CLEAR, b"", 0)
        for cell in [c for c in list(self.oracle.keys()) if c.startswith(b"m" + key)]:
            self.oracle.delete(cell)

    @rule()
    def flush(self):
        tables = [(self.header(name), rows) for name, rows in self.unflushed.items()]
        name = f"run-{len(self.storage.list())}"
        self.files.append(self.model.write(self.storage, name, tables, **self.options))
        self.unflushed = {"l": {}, "m": {}}
        self.oracle.flush()

    @rule(data=st.data(), lost=st.booleans(), cancelled=st.booleans())
    def compact(self, data, lost, cancelled):
        """Compact some neighbouring files; a lost compaction leaves files that nobody names."""
        first = data.draw(st.integers(0, len(self.files)))
        last = data.draw(st.integers(first, len(self.files)))
        self.jobs += 1
        job = self.model.job_of(
            self.files[first:last],
            bottom=first == 0,
            prefix=f"job-{self.jobs}/",
            target_bytes=self.target_bytes,
            **self.options,
        )
        left = iter(range(3))
        stop = (lambda: next(left, None) is None) if cancelled else (lambda: False)
        result = LsmCompactor().compact(job, self.storage, stop)
        if result is not None and not lost:
            self.files[first:last] = result.outputs

    @rule(keys=st.lists(KEYS, min_size=1), entry=ENTRIES)
    def get(self, keys, entry):
        for name, asked in (("l", keys), ("m", [key + entry for key in keys])):
            expected = [self.oracle.get(name.encode() + key) for key in asked]
            assert [self.lookup(name, key) for key in asked] == expected

    @rule()
    def scan(self):
        seen = {}
        for name, waiting in self.unflushed.items():
            cells = {}
            for rows in [*map(self.rows_of(name), self.files), waiting]:
                apply(cells, rows)
            seen |= {name.encode() + key: value for key, value in cells.items()}
        assert seen == dict(self.oracle.items())

    def header(self, name):
        return self.model.header(name, {"l": "list", "m": "map"}[name], user_key="bytes")

    def rows_of(self, name):
        return lambda file: self.model.read_all(self.storage, file).get(name, {})

    def lookup(self, name, key):
        """Look up from the newest run to the oldest, through filter, index and block."""
        found = b""
        for kind, value in self.versions(name, key):
            if kind != APPEND:
                return (value + found if kind == PUT else found) or None
            found = value + found
        return found or None

    def versions(self, name, key):
        waiting = self.unflushed[name]
        cells = (key,) if name == "l" else (key, key[:2])
        for asked in cells:
            if asked in waiting:
                yield waiting[asked][:2]
        for file in reversed(self.files):
            for asked in cells:
                row = self.find(file, name, asked)
                if row is not None:
                    yield row

    def find(self, file, name, key):
        table = SortedFile.open(self.storage, file).tables.get(name)
        if table is None:
            return None
        place = self.model.place_of(self.header(name))
        addresses = np.array([place(key)], np.uint64)
        number = int(table.candidates(addresses)[0])
        if number < 0:
            return None
        data = self.storage.get_ranges(file.name, [table.location(number)])[0]
        block = table.decode(number, data)
        at = int(block.find(addresses, [key])[0])
        return None if at < 0 else (int(block.kinds[at]), block.value(at))


def apply(cells, rows):
    """Apply a newer run to ``cells``; clears apply before the puts of their run."""
    for prefix in [key for key, row in rows.items() if row[0] == CLEAR]:
        for key in [key for key in cells if key.startswith(prefix)]:
            del cells[key]
    for key, (kind, value, _) in rows.items():
        if kind == PUT:
            cells[key] = value
        elif kind == APPEND:
            cells[key] = cells.get(key, b"") + value
        else:
            cells.pop(key, None)


@pytest.mark.long
@pytest.mark.hypothesis
def test_files_say_what_rocksdb_says(model):
    machine = type("Bound", (Machine,), {"model": model})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES if EXAMPLES > 100 else EXAMPLES // 2,
            stateful_step_count=30,
            deadline=None,
        ),
    )
