"""Compares with plain dicts: any writes, crashes, processes, rescales, replays and table kinds."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from forebay_backend_heap import encoding, file_reader, snapshot
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.keys import KeyGroupRange

pytestmark = pytest.mark.long

KEYS = st.integers(0, 8) | st.integers(0, 40)
NAMESPACES = st.sampled_from([None] * 6 + ["w1", ("w", 2)])
VALUES = st.integers(0, 300)
USER_KEYS = st.sampled_from(["a", "b", "ab", ""])

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("value"), KEYS, NAMESPACES, st.just(False), VALUES | st.just(ABSENT)),
        st.tuples(st.just("list"), KEYS, NAMESPACES, st.booleans(), st.lists(VALUES, max_size=3)),
        st.tuples(
            st.just("map"),
            KEYS,
            NAMESPACES,
            st.booleans(),
            st.dictionaries(USER_KEYS, VALUES | st.none() | st.just(ABSENT), max_size=3),
        ),
    ),
    max_size=25,
)


def write(batch, operation):
    name, key, namespace, anew, content = operation
    if name == "value":
        batch.put(name, key, content, namespace)
    elif name == "list":
        batch.append(name, key, content, namespace, replace=anew)
    else:
        batch.entries(name, key, content, namespace, clear=anew)


def expect(model, operation):
    name, key, namespace, anew, content = operation
    table = model[name]
    if name == "value":
        table[namespace, key] = content
    elif name == "list":
        table[namespace, key] = ([] if anew else table.get((namespace, key), [])) + content
    else:
        table[namespace, key] = ({} if anew else table.get((namespace, key), {})) | content
        table[namespace, key] = {k: v for k, v in table[namespace, key].items() if v is not ABSENT}
    if table[namespace, key] in (ABSENT, [], {}):
        del table[namespace, key]


@pytest.fixture
def machine(kit, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_CELLS", 3)
    specs = {
        "value": kit.spec("value", value=int),
        "list": kit.spec("list", Shape.LIST, value=int),
        "map": kit.spec("map", Shape.MAP, value=int | None, user_key=str),
    }

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.job = kit.Job(
                kit.CountingStorage(f"memory://machine{id(self)}"),
                path=f"machine{id(self)}",
            )
            self.processes = [kit.new_process(), kit.new_process()]
            self.models = [{name: {} for name in specs}]

        @initialize(factor=st.sampled_from([0.5, 1.0, 4.0, 1e6]), deltas=st.sampled_from([2, 3, 5]))
        def configure(self, factor, deltas):
            self.job.options = {"max-deltas": deltas, "snapshot-factor": factor}
            monkeypatch.setattr(snapshot, "PLANNED_FROM", 0)

        @rule(process=st.integers(0, 1))
        def write_planned_snapshot(self, process):
            self.processes[process].background.run()

        @rule(process=st.integers(0, 1))
        def kill(self, process):
            self.processes[process] = kit.new_process()

        @rule(
            operations=OPERATIONS,
            cut=st.integers(0, 25),
            parallelism=st.sampled_from([1, 1, 1, 2, 3]),
            process=st.integers(0, 1),
            declared=st.sampled_from([specs, specs, specs, ["value"], ["list", "map"]]),
            small=st.booleans(),
            fate=st.sampled_from(["commit", "commit", "commit", "lose", "repeat"]),
        )
        def batch(self, operations, cut, parallelism, process, declared, small, fate):
            kit.new_process(self.processes[process])
            monkeypatch.setattr(file_reader, "_WORTH_RANGES", 0 if small else 1 << 20)
            operations = [o for o in operations if o[0] in declared]
            manifests = []
            for groups in self.job.ranges(parallelism):
                for _ in range(2 if fate == "repeat" else 1):
                    manifest = self.subtask(groups, declared, operations, cut, fate != "lose")
                manifests.append(manifest)
            if fate == "lose":
                return
            model = copy.deepcopy(self.models[-1])
            for operation in operations:
                expect(model, operation)
            self.models.append(model)
            self.job.history.append(manifests)
            counts = [m.state.keys for m in manifests]
            if None not in counts:
                assert sum(counts) == sum(map(len, model.values()))

        def subtask(self, groups, declared, operations, cut, install):
            batch = self.job.begin([specs[name] for name in declared], groups)
            self.check(batch, groups, self.models[-1])
            for i, operation in enumerate(operations):
                if i == cut:
                    batch.hand_over()
                if kit.group_of(operation[1]) in groups:
                    write(batch, operation)
            return self.job.end(batch, install=install)

        @rule(back=st.integers(1, 3))
        def replay(self, back):
            kept = max(1, len(self.models) - back)
            del self.models[kept:], self.job.history[kept:]

        @rule(version=st.integers(0, 20), start=st.integers(0, 15), length=st.integers(1, 16))
        def look(self, version, start, length):
            """Open any range of any version from another process."""
            kit.new_process()
            version = min(version, self.job.version)
            groups = KeyGroupRange(start, min(start + length, kit.MAX_PARALLELISM) - 1)
            batch = self.job.begin(specs.values(), groups, version)
            self.check(batch, groups, self.models[version])

        def check(self, batch, groups, model):
            for name in batch.tables:
                expected = {
                    address: content
                    for address, content in model[name].items()
                    if kit.group_of(address[1]) in groups
                }
                assert batch.content(name) == expected

    return Machine


@pytest.mark.hypothesis
def test_any_history_reads_as_plain_dicts_would(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=16,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
