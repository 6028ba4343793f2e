"""Tables: reads, stable views, changed declarations, states that are not declared."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_heap.encoding import encode
from forebay_backend_heap.groups import GroupIndex
from forebay_backend_heap.table import HeapTable
from forebay_backend_heap.write_buffer import WriteBuffer
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, PointChanges, Shape
from forebay_state_api.errors import StateMigrationError


def test_reads_answer_from_the_cells(kit, job):
    value, mapped = kit.spec("v", value=int), kit.spec("m", Shape.MAP, int, user_key=str)
    batch = job.begin([value, mapped])
    batch.put("v", 1, 10)
    batch.put("v", 1, 20, "w")
    batch.entries("m", 1, {"a": 1})
    v, m = batch.tables["v"], batch.tables["m"]
    assert v.get_many(None, [(1, 1), (2, 2)]) == [10, ABSENT]
    assert v.get_many("w", [(1, 1)]) == [20]
    assert m.get_entries(None, [(1, 1, "a"), (1, 1, "b"), (2, 2, "a")]) == [1, ABSENT, ABSENT]
    assert v.space(None).complete
    assert v.space(None) is v.space(None)


@pytest.mark.parametrize("shape", [Shape.LIST, Shape.MAP])
def test_a_scan_does_not_move(kit, job, shape):
    spec = kit.spec("s", shape, value=int, user_key=int)
    batch = job.begin([spec])
    if shape is Shape.LIST:
        batch.append("s", 1, range(5))
        expected = [[0, 1], [2, 3], [4]]
    else:
        batch.entries("s", 1, {i: i for i in range(5)})
        expected = [[(0, 0), (1, 1)], [(2, 2), (3, 3)], [(4, 4)]]
    scan = batch.tables["s"].scan(None, 1, 1)
    batch.tables["s"].space(None).cells[1].clear()
    assert list(scan.pages(2)) == expected
    assert list(scan.pages(2)) == expected
    assert list(batch.tables["s"].scan(None, 9, 9).pages(2)) == []


def test_writes_may_be_handed_over_in_parts(kit, job):
    spec = kit.spec("v", value=int)
    batch = job.begin([spec])
    for i in range(3):
        batch.put("v", 1, i)
        batch.put("v", 2, i if i < 2 else ABSENT)
        batch.hand_over()
    job.commit(batch)
    kit.new_process()
    assert job.begin([spec]).content("v") == {(None, 1): 2}


def test_lists_and_maps_without_content_do_not_exist(kit, job):
    spec, mapped = (
        kit.spec("l", Shape.LIST, int),
        kit.spec("m", Shape.MAP, int, user_key=int),
    )
    batch = job.begin([spec, mapped])
    batch.append("l", 1, [], replace=True)
    batch.append("l", 2, [5])
    batch.entries("m", 1, {1: ABSENT})
    batch.hand_over()
    assert batch.tables["l"].space(None).cells == {2: [5]}
    assert batch.tables["m"].space(None).cells == {}
    assert job.commit(batch).keys == 1


def test_times_of_ttl_states_are_kept(kit, job):
    specs = [
        kit.spec("v", value=str, ttl=True),
        kit.spec("l", Shape.LIST, value=str, ttl=True),
        kit.spec("m", Shape.MAP, value=str | None, user_key=int, ttl=True),
    ]
    batch = job.begin(specs)
    batch.put("v", 1, (1 << 50, "x"))
    batch.append("l", 1, [(-5, "a"), (7, "b")])
    batch.entries("m", 1, {1: (3, None)})
    job.commit(batch)
    kit.new_process()
    batch = job.begin(specs)
    assert batch.content("v") == {(None, 1): (1 << 50, "x")}
    assert batch.content("l") == {(None, 1): [(-5, "a"), (7, "b")]}
    assert batch.content("m") == {(None, 1): {1: (3, None)}}


def test_a_compatible_type_reads_old_values_and_new_ones(kit, job):
    old, new = kit.spec("v", value=int), kit.spec("v", value=float | None)
    batch = job.begin([old])
    for key in range(100):
        batch.put("v", key, key)
    job.commit(batch)
    batch = job.begin([new])
    batch.put("v", 1, None)
    state = job.commit(batch)
    assert [file.meta["role"] for file in state.files] == ["snapshot", "delta"]
    kit.new_process()
    batch = job.begin([new])
    content = batch.content("v")
    assert (content[None, 1], content[None, 2], type(content[None, 2])) == (None, 2.0, float)
    for key in range(100):
        batch.put("v", key, None)
    job.commit(batch)
    kit.new_process()
    assert set(job.begin([new]).content("v").values()) == {None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": Shape.LIST}, "kind points, and is declared with kind lists"),
        ({"value": str}, "stored as int, declared as str"),
        ({"key": str}, "under keys of type int, and its keys are now of type str: .* another uid"),
        ({"ttl": True}, "no TTL, and is declared with TTL"),
    ],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_what_does_not_fit_is_refused_and_kept(kit, job, change, message, fresh):
    declared = {"shape": Shape.POINT, "value": int, "key": int, "ttl": False}
    batch = job.begin([kit.spec("v", **declared)])
    batch.put("v", 1, 1)
    job.commit(batch)
    if fresh:
        kit.new_process()
    with pytest.raises(StateMigrationError, match=message) as caught:
        job.begin([kit.spec("v", **{**declared, **change})])
    assert "state 'v'" in str(caught.value)
    assert job.begin([kit.spec("v", **declared)]).content("v") == {(None, 1): 1}


def test_a_declared_state_is_refused_even_without_cells(kit, job):
    job.commit(job.begin([kit.spec("v", value=int)]))
    with pytest.raises(StateMigrationError):
        job.begin([kit.spec("v", value=str)])


def test_a_class_that_was_defined_anew_gets_values_of_its_own(kit, job):
    def declare():
        @attrs.frozen
        class Visit:
            page: str

        return Visit, kit.spec("v", value=dict[str, list[Visit | None]])

    visit, spec = declare()
    batch = job.begin([spec])
    batch.put("v", 1, {"x": [visit("a"), None]})
    job.commit(batch)
    batch = job.begin([spec])
    assert type(batch.content("v")[None, 1]["x"][0]) is visit
    job.commit(batch)
    visit_again, spec = declare()
    job.storage.reads.clear()
    batch = job.begin([spec])
    assert batch.content("v") == {(None, 1): {"x": [visit_again("a"), None]}}
    assert job.storage.reads == []


def test_states_that_are_not_asked_for_are_neither_decoded_nor_lost(kit, job):
    v, w = kit.spec("v", value=int), kit.spec("w", value=str)
    batch = job.begin([v, w])
    batch.put("v", 1, 1)
    batch.put("w", 2, "two")
    job.commit(batch)
    kit.new_process()
    batch = job.begin([v])
    batch.put("v", 3, 3)
    assert job.commit(batch).keys == 3
    batch = job.begin([v, w])
    assert batch.content("w") == {(None, 2): "two"}
    assert batch.content("v") == {(None, 1): 1, (None, 3): 3}


def test_the_cells_of_an_undecoded_state_are_unknown_after_a_split(kit, job):
    v, w = kit.spec("v", value=int), kit.spec("w", value=str)
    batch = job.begin([v, w])
    for key in range(16):
        batch.put("w", key, "x")
    job.commit(batch)
    halves = [job.end(job.begin([v], groups)) for groups in job.ranges(2)]
    assert [m.state.keys for m in halves] == [None, None]
    job.history.append([job.end(job.begin([w], groups)) for groups in job.ranges(2)])
    assert [m.state.keys for m in job.history[-1]] == [8, 8]
    assert job.commit(job.begin([v])).keys == 16


def test_emptied_namespaces_are_forgotten_after_the_commit(kit, job):
    spec = kit.spec("v", value=int)
    batch = job.begin([spec])
    batch.put("v", 1, 1)
    batch.put("v", 1, 1, "w")
    job.commit(batch)
    batch = job.begin([spec])
    batch.put("v", 1, ABSENT, "w")
    job.commit(batch)
    assert list(job.begin([spec]).tables["v"]._spaces) == [None]


def test_group_index_knows_keys_that_came_again(monkeypatch):
    monkeypatch.setattr("forebay_backend_heap.groups._SLACK", 0)
    index = GroupIndex()
    cells = {}
    for step in range(50):
        keys = [(step * 7 + i) % 60 for i in range(20)]
        cells.update(dict.fromkeys(keys))
        if step % 5 == 4:
            del cells[keys[0]]
        index.add(keys, keys)
    assert index.of(list(cells)).tolist() == list(cells)
    assert sum(len(keys) for keys, _ in index._runs) <= 6 * 60 + 20


_STEPS = st.tuples(
    st.sampled_from([None, "w"]),
    st.dictionaries(st.integers(0, 5), st.one_of(st.integers(), st.none()), min_size=1),
)


@given(steps=st.lists(_STEPS, max_size=8))
def test_sections_read_at_once_give_what_they_give_one_by_one(steps):
    spec = TableSpec(
        name="v",
        shape=Shape.POINT,
        kind="value",
        key=codec_for(int, what="key"),
        value=codec_for(int, what="value"),
    )
    buffers = [WriteBuffer() for _ in steps]
    expected = {None: {}, "w": {}}
    for (namespace, cells), buffer in zip(steps, buffers, strict=True):
        values = [ABSENT if value is None else value for value in cells.values()]
        points = PointChanges([*cells], [*cells], values)
        buffer.add(Changes(points={namespace: points}))
        expected[namespace].update(cells)
    sections = [
        encode(spec, op, block, KeyGroupRange(0, 9))
        for buffer in buffers
        for op, block in buffer.blocks()
    ]
    at_once, one_by_one = HeapTable(spec), HeapTable(spec)
    at_once.replay(sections)
    for section in sections:
        one_by_one.replay([section])
    for namespace, cells in expected.items():
        there = {key: value for key, value in cells.items() if value is not None}
        assert at_once.space(namespace).cells == there
        assert one_by_one.space(namespace).cells == there
    if at_once.content() is not None:
        assert sorted(at_once.content().groups) == sorted(k for c in at_once.all_cells() for k in c)
