"""Compares merging and compaction with a model that works cell by cell."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.files import SortedFile
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange

PUT, DELETE, APPEND, CLEAR = range(4)
KEY = st.tuples(st.integers(0, 3), st.integers(0, 2)).map(bytes)
ENTRY = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 3)).map(bytes)
STAMPED = st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=2)), min_size=1, max_size=3)


def values(kind, *, ttl):
    """Return a strategy for the rows of a run, by kind of table."""
    time = st.integers(1, 9) if ttl and kind != "list" else st.just(0)
    value = st.binary(min_size=1, max_size=8)
    dead = st.tuples(st.just(DELETE), st.just(b""), time)
    if kind != "list":
        return st.tuples(st.just(PUT), value, time) | dead
    if ttl:
        value = STAMPED
    return st.tuples(st.sampled_from([PUT, APPEND]), value, time) | dead


def runs(kind, *, ttl=False):
    """Return a strategy for runs, oldest first: key → (kind, value, time)."""
    key = ENTRY if kind == "map" else KEY
    run = st.dictionaries(key, values(kind, ttl=ttl), max_size=8)
    if kind == "map":
        clears = st.sets(KEY, max_size=2)
        time = st.just((CLEAR, b"", 0))
        run = st.tuples(run, clears, time).map(lambda r: {**dict.fromkeys(r[1], r[2]), **r[0]})
    return st.lists(run, max_size=5)


def expired(row, until):
    return until is not None and row[0] == PUT and row[2] <= until


def point_answer(found, until):
    """Return the content of one cell in runs, read from the newest: ``None`` if it is missing."""
    for row in reversed(found):
        return None if row[0] == DELETE or expired(row, until) else row[1:]
    return None


def map_answer(found, key, until):
    """Return the content of a map entry, which a clear in a newer run hides."""
    for run in reversed(found):
        if (row := run.get(key)) is not None:
            return None if row[0] == DELETE or expired(row, until) else row[1:]
        if any(row[0] == CLEAR and key.startswith(prefix) for prefix, row in run.items()):
            return None
    return None


def content(found, kind, until, chunks):
    """Return key → the content that a reader of ``found`` sees."""
    answer = {}
    for key in {key for run in found for key in run}:
        rows = [run[key] for run in found if key in run]
        if kind == "list":
            seen = list_answer(rows, until, chunks)
        elif kind == "map":
            seen = map_answer(found, key, until) if len(key) > 2 else None
        else:
            seen = point_answer(rows, until)
        if seen is not None:
            answer[key] = seen
    return answer


def list_answer(rows, until, chunks):
    elements = []
    for kind, value, _ in rows:
        elements = [] if kind != APPEND else elements
        elements += chunks(value) if value else []
    return [e for e in elements if until is None or e[0] > until] or None


def packed(model, run, *, stamped):
    """Return the rows encoded as in files."""
    if not stamped:
        return run
    return {k: (kind, model.elements(*v) if v else b"", t) for k, (kind, v, t) in run.items()}


def chunked(value):
    """Encode a value given as a list of pairs, or of bytes without times."""
    return list(value) if isinstance(value, list) else [(math.inf, bytes([b])) for b in value]


def unpacked(value):
    from forebay_backend_lsm.files.lists import chunks_of

    return [pair for t, e in chunks_of(value) for pair in zip(t, e, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "ttl"),
    [
        *(pytest.param(kind, False, marks=pytest.mark.slow) for kind in ("list", "map")),
        ("value", False),  # the others without TTL: by default in test_oracle.py
        ("value", True),
        ("list", True),
        ("map", True),
    ],
)
@given(data=st.data())
def test_a_compaction_changes_no_answer(model, kind, ttl, data):
    storage, h = model.new_storage(), model.header(kind=kind, ttl=ttl)
    stamped = kind == "list" and ttl
    found = data.draw(runs(kind, ttl=ttl))
    block_bytes = data.draw(st.sampled_from([1, 60, 32768]))
    files = [
        model.write(
            storage, f"in/{i}", [(h, packed(model, run, stamped=stamped))], block_bytes=block_bytes
        )
        for i, run in enumerate(found)
    ]
    first = data.draw(st.integers(0, len(files)))
    last = data.draw(st.integers(first, len(files)))
    until = data.draw(st.none() | st.integers(0, 10)) if ttl else None
    job = model.job_of(
        files[first:last],
        bottom=first == 0,
        now_us=100,
        target_bytes=data.draw(st.sampled_from([1, 200, 1 << 20])),
        ttl={} if until is None else {"t": 100 - until},
        block_bytes=block_bytes,
    )
    result = LsmCompactor().compact(job, storage, lambda: False)
    outputs = {}
    for file in result.outputs:
        rows = model.read_all(storage, file)["t"]
        assert not outputs.keys() & rows.keys()
        outputs |= rows
    assert list(outputs) == sorted(outputs, key=lambda k: (model.place_of(h)(k), k))
    chunks = unpacked if stamped else chunked
    merged = [*(packed(model, r, stamped=stamped) for r in found)]
    before = content(merged, kind, until, chunks)
    after = content([*merged[:first], outputs, *merged[last:]], kind, until, chunks)
    assert after == before
    assert result.entries_in == sum(map(len, found[first:last]))
    assert result.entries_out == len(outputs) == result.entries_in - result.entries_dropped
    assert sum(result.dropped.values()) == result.entries_dropped
    assert all(count >= 0 for count in result.dropped.values())
    if first == 0:
        assert all(row[0] == PUT for row in outputs.values())
        if until is not None:
            assert not any(expired(row, until) for row in outputs.values() if kind != "list")


def test_an_expired_put_above_older_runs_becomes_a_tombstone(model, storage):
    h = model.header(ttl=True)
    file = model.write(storage, "a", [(h, {b"\x01": (PUT, b"v", 5), b"\x02": (PUT, b"w", 6)})])
    job = model.job_of([file], bottom=False, now_us=15, ttl={"t": 10})
    (output,) = LsmCompactor().compact(job, storage, lambda: False).outputs
    expected = {b"\x01": (DELETE, b"", 5), b"\x02": (PUT, b"w", 6)}
    assert model.read_all(storage, output) == {"t": expected}
    job = model.job_of([file], now_us=15, ttl={"t": 10}, prefix="b/")
    (output,) = LsmCompactor().compact(job, storage, lambda: False).outputs
    assert model.read_all(storage, output) == {"t": {b"\x02": (PUT, b"w", 6)}}


@pytest.mark.parametrize("kind", ["value", "list"])
@pytest.mark.parametrize("bottom", [True, False])
def test_a_result_says_why_cells_were_dropped(model, storage, kind, bottom):
    h = model.header(kind=kind, ttl=True)

    def put(time):
        if kind == "list":
            return PUT, model.elements((time, b"v")), 0
        return PUT, b"v", time

    runs = [
        {b"\x01": put(5), b"\x02": put(9), b"\x03": put(9), b"\x04": put(9)},
        {b"\x02": put(10), b"\x03": (DELETE, b"", 11), b"\x05": (DELETE, b"", 11)},
    ]
    files = [model.write(storage, f"{n}", [(h, run)]) for n, run in enumerate(runs)]
    job = model.job_of(files, bottom=bottom, now_us=15, ttl={"t": 10})
    result = LsmCompactor().compact(job, storage, lambda: False)
    left = {"deleted": 2, "expired": 1} if bottom else {"deleted": 0, "expired": 0}
    assert result.dropped == {"overwritten": 2, **left}


@pytest.mark.parametrize("kind", ["value", "list"])
@pytest.mark.parametrize(
    ("every", "readings", "left"),
    [
        (None, [], [0, 1, 2, 3, 4]),
        (5, [], [0, 1, 2, 3, 4]),
        (4, [30], [0, 1, 2, 3]),
        (2, [19, 30], [0, 1]),
        (2, [19, 1], [0, 1, 4]),
        (1, [16, 18, 19, 29], [0, 2, 4]),
    ],
)
def test_the_clock_is_read_again_every_so_many_cells(model, storage, kind, every, readings, left):
    h = model.header(kind=kind, ttl=True)
    keys = sorted(map(bytes, [[1], [2], [3], [4], [5]]), key=lambda k: (model.place_of(h)(k), k))
    rows = {
        key: (PUT, model.elements((time, b"v")), 0) if kind == "list" else (PUT, b"v", time)
        for key, time in zip(keys, [6, 6, 9, 9, 20], strict=True)
    }
    file = model.write(storage, "a", [(h, rows)])
    clock_every = {} if every is None else {"t": every}
    for prefix in ("first/", "second/"):
        times = iter(readings)
        job = model.job_of([file], now_us=15, ttl={"t": 10}, clock_every=clock_every, prefix=prefix)
        compactor = LsmCompactor(lambda _: times.__next__)  # noqa: B023 - used before the next turn
        (output,) = compactor.compact(job, storage, lambda: False).outputs
        assert [keys.index(key) for key in model.read_all(storage, output)["t"]] == left
        assert not [*times]
    first, second = (storage.get(f"{prefix}0000") for prefix in ("first/", "second/"))
    assert first == second


def test_a_state_without_clean_up_keeps_what_has_expired(model, storage):
    found = {b"\x01": (PUT, b"v", 5)}
    file = model.write(storage, "a", [(model.header(ttl=True), found)])
    job = model.job_of([file], now_us=1 << 40, ttl={"other": 1})
    (output,) = LsmCompactor().compact(job, storage, lambda: False).outputs
    assert model.read_all(storage, output) == {"t": found}


def test_appends_fold_into_what_they_are_appended_to(model, storage):
    h = model.header(kind="list")
    rows = [(PUT, b"a", 0), (APPEND, b"b", 0), (APPEND, b"c", 0)]
    files = [model.write(storage, f"{i}", [(h, {b"\x01": r})]) for i, r in enumerate(rows)]
    result = LsmCompactor().compact(model.job_of(files), storage, lambda: False)
    assert model.read_all(storage, result.outputs[0])["t"] == {b"\x01": (PUT, b"abc", 0)}
    assert (result.entries_in, result.entries_out, result.entries_dropped) == (3, 1, 2)
    assert result.dropped == {"overwritten": 2, "deleted": 0, "expired": 0}
    job = model.job_of(files[1:], bottom=False, prefix="b/")
    (output,) = LsmCompactor().compact(job, storage, lambda: False).outputs
    assert model.read_all(storage, output)["t"] == {b"\x01": (APPEND, b"bc", 0)}


def test_inputs_are_clipped_to_the_range_for_which_they_are_read(model, storage):
    old = {bytes([g]): (PUT, b"old", 0) for g in range(16)}
    new = {bytes([g]): (PUT, b"new", 0) for g in range(16)}
    files = [model.write(storage, n, [(model.header(), r)]) for n, r in [("o", old), ("n", new)]]
    inputs = [model.clipped(files[0], 2, 9), model.clipped(files[1], 6, 12)]
    job = model.job_of(inputs, range=KeyGroupRange(4, 10))
    result = LsmCompactor().compact(job, storage, lambda: False)
    (output,) = result.outputs
    assert output.range == KeyGroupRange(4, 10)
    assert model.read_all(storage, output)["t"] == {
        bytes([g]): (PUT, b"old" if g < 6 else b"new", 0) for g in range(4, 11)
    }
    assert (result.entries_in, result.entries_out) == (6 + 5, 7)
    job = model.job_of(inputs, range=KeyGroupRange(0, 3), prefix="b/")
    (output,) = LsmCompactor().compact(job, storage, lambda: False).outputs
    assert output.range == KeyGroupRange(2, 3)


def test_nothing_left_is_no_file(model, storage):
    file = model.write(storage, "a", [(model.header(), {b"\x01": (DELETE, b"", 0)})])
    for inputs in ([file], [], [model.clipped(file, 5, 9)]):
        result = LsmCompactor().compact(model.job_of(inputs), storage, lambda: False)
        assert (list(result.outputs), result.entries_out) == ([], 0)
    assert [info.name for info in storage.list()] == ["a"]


@pytest.mark.long
def test_the_same_job_gives_the_same_bytes_in_files_of_the_target_size(model, storage):
    found = [
        {bytes([i % 200, i // 200, r]): (PUT, b"%d" % i * 9, 0) for i in range(r, 6000, 3)}
        for r in range(3)
    ]
    files = [model.write(storage, f"{i}", [(model.header(), r)]) for i, r in enumerate(found)]
    made = []
    for prefix in ("x/", "y/"):
        job = model.job_of(files, prefix=prefix, target_bytes=20_000, block_bytes=2000)
        outputs = LsmCompactor().compact(job, storage, lambda: False).outputs
        assert [f.name for f in outputs] == [f"{prefix}{i:04d}" for i in range(len(outputs))]
        assert all(file.size >= 20_000 for file in outputs[:-1])
        made.append([storage.get(file.name) for file in outputs])
    assert made[0] == made[1]


def test_several_tables_go_through_one_compaction(model, storage):
    a, b = model.header("a"), model.header("b", "list")
    files = [
        model.write(storage, "1", [(a, {b"\x01": (PUT, b"x", 0)}), (b, {b"\x01": (PUT, b"1", 0)})]),
        model.write(storage, "2", [(b, {b"\x01": (APPEND, b"2", 0)})]),
    ]
    job = model.job_of(files, target_bytes=1)
    outputs = LsmCompactor().compact(job, storage, lambda: False).outputs
    assert [model.read_all(storage, file) for file in outputs] == [
        {"a": {b"\x01": (PUT, b"x", 0)}},
        {"b": {b"\x01": (PUT, b"12", 0)}},
    ]


def test_values_of_an_older_type_go_to_a_lane_of_their_own(model, storage):
    old, new = model.header("l", "list", value="int"), model.header("l", "list", value="long")
    first = {b"\x01": (PUT, b"a", 0), b"\x02": (PUT, b"b", 0), b"\x03": (PUT, b"c", 0)}
    second = {b"\x01": (APPEND, b"d", 0), b"\x02": (PUT, b"e", 0), b"\x03": (DELETE, b"", 0)}
    files = [model.write(storage, "1", [(old, first)]), model.write(storage, "2", [(new, second)])]
    outputs = LsmCompactor().compact(model.job_of(files), storage, lambda: False).outputs
    assert [file.meta["lane"] for file in outputs] == [0, 1]
    assert [model.read_all(storage, file)["l"] for file in outputs] == [
        {b"\x01": (PUT, b"a", 0)},
        {b"\x01": (APPEND, b"d", 0), b"\x02": (PUT, b"e", 0)},
    ]
    again = LsmCompactor().compact(model.job_of(outputs, prefix="b/"), storage, lambda: False)
    assert [storage.get(f.name) for f in again.outputs] == [storage.get(f.name) for f in outputs]


def test_keys_of_another_type_are_not_merged_and_keep_their_tombstones(model, storage):
    old = model.header("m", "map", user_key="int")
    new = model.header("m", "map", user_key="long")
    first, second = {b"\x01\x01a": (PUT, b"v", 0)}, {b"\x01\x01b": (DELETE, b"", 0)}
    files = [model.write(storage, "1", [(old, first)]), model.write(storage, "2", [(new, second)])]
    outputs = LsmCompactor().compact(model.job_of(files), storage, lambda: False).outputs
    assert [model.read_all(storage, file)["m"] for file in outputs] == [first, second]


def test_a_cancelled_job_ends_within_a_block(model, storage):
    found = {bytes([i % 200, i // 200]): (PUT, b"x" * 50, 0) for i in range(5000)}
    file = model.write(storage, "a", [(model.header(), found)], block_bytes=500)
    asked = []

    def stop_after(count):
        asked.clear()
        return lambda: asked.append(1) or len(asked) > count

    job = model.job_of([file], prefix="done/")
    assert LsmCompactor().compact(job, storage, stop_after(10**9)) is not None
    whole = len(asked)
    blocks = len(SortedFile.open(storage, file).tables["t"].first_addresses)
    assert whole > blocks > 50
    for count in (0, 1, 7, whole // 2, whole - 1):
        job = model.job_of([file], prefix=f"{count}/")
        assert LsmCompactor().compact(job, storage, stop_after(count)) is None
        assert len(asked) == count + 1
        assert storage.list(f"{count}/") == []


def test_a_damaged_input_is_named(model, storage):
    found = {bytes([i]): (PUT, b"x" * 50, 0) for i in range(50)}
    file = model.write(storage, "in/a", [(model.header(), found)], block_bytes=200)
    good = storage.get("in/a")
    storage.put("in/a", good[:100] + b"\xff" + good[101:])
    with pytest.raises(CorruptStateError, match="'in/a', state 't': block"):
        LsmCompactor().compact(model.job_of([file]), storage, lambda: False)
    storage.put("in/a", good)
    longer = attrs.evolve(file, size=file.size + 10)
    with pytest.raises(CorruptStateError, match="'in/a'"):
        LsmCompactor().compact(model.job_of([longer]), storage, lambda: False)
