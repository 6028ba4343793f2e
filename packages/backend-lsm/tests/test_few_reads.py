"""Tables with few cells: the same answers as other tables, and few requests for many tables."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_backend_lsm.cache import CACHE
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.few_reads import MOST_ASKED
from forebay_backend_lsm.files import SortedFile
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange

TABLES = 200
KEYS = [f"key {n}" for n in range(MOST_ASKED + 4)]


def commit_all(operator, specs, kit, value):
    operator.commit(*((spec, kit.points({"k": value})) for spec in specs))


def specs_of(kit, number=TABLES, **declared):
    return [kit.spec(f"s{n:03d}", **declared) for n in range(number)]


def read_each(backend, specs, kit):
    asked = [(kit.group_of("k"), "k")]
    return [backend.table(spec).get_many(None, asked)[0] for spec in specs]


CONTENT = st.one_of(st.just(ABSENT), st.integers(0, 99))


@pytest.mark.long
@pytest.mark.parametrize("ttl", [False, True])
def test_single_cells_are_read_as_in_batches(new_operator, kit, ttl):
    @settings(deadline=None, max_examples=40)
    @given(
        st.lists(
            st.tuples(st.dictionaries(st.sampled_from(KEYS), CONTENT, min_size=1), st.booleans()),
            max_size=4,
        ),
        st.booleans(),
    )
    def check(commits, cold):
        CACHE.clear()
        operator, spec, model = new_operator(), kit.spec(ttl=ttl), {}
        for values, install in commits:
            stored = {k: (5, v) if ttl and v is not ABSENT else v for k, v in values.items()}
            operator.commit((spec, kit.points(stored)), install=install)
            model |= stored
        if cold:
            CACHE.clear()
        expected = [model.get(key, ABSENT) for key in KEYS]
        assert [operator.read(spec, [key])[0] for key in KEYS] == expected
        assert operator.read(spec, KEYS) == expected
        assert operator.read(spec, KEYS[:MOST_ASKED]) == expected[:MOST_ASKED]

    check()


@pytest.mark.long
def test_single_entries_are_read_as_in_batches(new_operator, kit):
    entries = st.dictionaries(st.sampled_from(["a", "b"]), CONTENT)
    commit = st.tuples(st.sampled_from(KEYS[:3]), entries, st.booleans(), st.booleans())

    @settings(deadline=None, max_examples=60)
    @given(st.lists(commit, max_size=5))
    def check(commits):
        CACHE.clear()
        operator, spec, model = new_operator(), kit.spec(shape=Shape.MAP), {}
        for key, changed, cleared, install in commits:
            changes = kit.entered({key: changed}, cleared=cleared)
            operator.commit((spec, changes), install=install)
            model[key] = ({} if cleared else model.get(key, {})) | changed
        asked = [(kit.group_of(key), key, user_key) for key in KEYS for user_key in ("a", "b")]
        expected = [model.get(key, {}).get(user_key, ABSENT) for _, key, user_key in asked]
        table = operator.table(spec)
        assert [table.get_entries(None, [cell])[0] for cell in asked] == expected
        assert table.get_entries(None, asked) == expected

    check()


def test_cells_of_key_groups_that_others_read_are_not_seen(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    operator.commit((spec, kit.points({"k": 1})))
    (parent,), group = operator.parents, kit.group_of("k")
    other = KeyGroupRange(group + 1, 15)
    operator.parents = [
        attrs.evolve(parent, files=[attrs.evolve(f, range=other) for f in parent.files])
    ]
    assert operator.read(spec, ["k"]) == [ABSENT]


@pytest.mark.parametrize("waits", [False, True])
def test_the_cells_of_many_tables_are_read_together(new_operator, kit, waits):
    operator, specs = new_operator(), specs_of(kit)
    for value in range(3):
        commit_all(operator, specs, kit, value)
    CACHE.clear()
    operator.storage.waits = waits
    operator.storage.reset()
    assert read_each(operator.open(), specs, kit) == [2] * TABLES
    # The files' tails; then the newest cells, or those of all files at once.
    assert operator.storage.counts == {"get_ranges": 3 + (3 if waits else 1)}


def test_a_process_does_not_read_the_few_cells_that_it_has_written(new_operator, kit):
    operator, specs = new_operator(), specs_of(kit, 3)
    commit_all(operator, specs, kit, 1)
    operator.commit((specs[0], kit.points(dict.fromkeys(KEYS, 2))))
    operator.storage.reset()
    assert read_each(operator.open(), specs, kit) == [1] * 3
    assert operator.read(specs[0], KEYS) == [2] * len(KEYS)
    assert operator.storage.requests == []


@pytest.mark.parametrize("waits", [False, True])
def test_older_files_are_read_if_they_may_have_a_cell(new_operator, kit, waits):
    operator, spec = new_operator(), kit.spec()
    for n, key in enumerate(["old", "other", "new"]):
        operator.commit((spec, kit.points({key: n})))
    CACHE.clear()
    operator.storage.waits = waits
    operator.storage.reset()
    assert operator.read(spec, ["old", "missing"]) == [0, ABSENT]
    assert operator.storage.counts == {"get_ranges": 3 + 1}, "tails, and the file that has it"


def damaged(operator, name):
    """Alter a byte of a table's only block."""
    (file,) = operator.last.files
    section = SortedFile.open(operator.storage, file).sections[name]
    data = bytearray(operator.storage.get(file.name))
    data[section.offset + section.size // 2] ^= 1
    operator.storage.inner.put(file.name, bytes(data))
    CACHE.clear()


def test_the_damage_of_a_table_is_for_its_own_readers(new_operator, kit):
    operator, specs = new_operator(), specs_of(kit, 5)
    commit_all(operator, specs, kit, 7)
    damaged(operator, "s002")
    backend = operator.open()
    with pytest.raises(CorruptStateError, match="state 's002': block 0 at offset"):
        read_each(backend, [specs[2]], kit)
    others = [spec for spec in specs if spec.name != "s002"]
    assert read_each(backend, others, kit) == [7] * 4
    with pytest.raises(CorruptStateError, match=r"state 's002': block 0 .* operator 'operator'"):
        read_each(backend, [specs[2]], kit)


def test_a_value_that_cannot_be_decoded_is_named(new_operator, kit):
    operator, spec = new_operator(), kit.spec("s", value=list[int])
    lying = attrs.evolve(kit.spec(value=int).value, description=spec.value.description)
    operator.commit((attrs.evolve(spec, value=lying), kit.points({"k": 5})))
    with pytest.raises(CorruptStateError, match=r"file 'data/.*, state 's', key 'k'"):
        operator.read(spec, ["k"])


def test_many_tables_are_compacted_in_few_requests(new_operator, kit):
    operator, specs = new_operator(), specs_of(kit)
    for value in range(4):
        commit_all(operator, specs, kit, value)
    job = CompactionJob(
        id="j",
        operator="",
        format="lsm-1",
        inputs=operator.last.files,
        output_prefix="out/",
        range=kit.GROUPS,
        now_us=0,
        target_bytes=1 << 20,
        options={"bottom": True},
    )
    operator.storage.reset()
    result = LsmCompactor().compact(job, operator.storage, lambda: False)
    assert operator.storage.counts == {"get_ranges": 2 * 4, "put": 1}
    assert (result.entries_in, result.entries_out) == (4 * TABLES, TABLES)
    assert result.dropped == {"overwritten": 3 * TABLES, "deleted": 0, "expired": 0}
    (parent,) = operator.parents
    operator.parents = [attrs.evolve(parent, files=result.outputs)]
    assert read_each(operator.open(), specs, kit) == [3] * TABLES
