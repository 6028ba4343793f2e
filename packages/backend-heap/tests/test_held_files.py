"""Small files are held by the manifest: no request, the same content, and a bounded manifest."""

import attrs
import pytest

from forebay_backend_heap.options import HeapOptions
from forebay_state_api import CorruptStateError

MOST_HELD = HeapOptions().held_bytes
MOST_HELD_TOGETHER = 4 * MOST_HELD
MOST_RECENT = 8 * MOST_HELD
"""The most bytes of deltas that only serve copies of the last versions."""


def change(job, spec, keys, value):
    batch = job.begin([spec])
    for key in keys:
        batch.put("s", key, value)
    return job.commit(batch)


def held(state):
    chain = {file.name: file.data for file in state.files if file.data is not None}
    return chain | state.meta.get("held", {})


@pytest.fixture
def job(kit, storage):
    return kit.Job(storage, options={"held-bytes": MOST_HELD})


@pytest.fixture
def point(kit):
    return kit.spec("s", value=int)


def test_small_commits_write_no_object(kit, job, storage, point):
    for value in range(40):
        change(job, point, range(10), value)
    assert not storage.writes
    kit.new_process()
    assert job.begin([point]).content("s") == {(None, key): 39 for key in range(10)}
    assert not storage.reads


def test_what_is_held_is_bounded_and_the_rest_is_in_files(kit, job, storage, point):
    """Deltas of a kilobyte: now and then the held ones are folded into a file."""
    most = 0
    for value in range(100):
        state = change(job, point, range(value * 300 % 20_000, value * 300 % 20_000 + 300), value)
        chain = sum(file.size for file in state.files if file.data is not None)
        assert chain <= MOST_HELD_TOGETHER + MOST_HELD
        assert sum(map(len, held(state).values())) <= MOST_HELD_TOGETHER + MOST_HELD + MOST_RECENT
        assert all(file.size > MOST_HELD for file in state.files if file.data is None)
        most = max(most, chain)
    assert 0 < len(storage.writes) < 40
    assert most > MOST_HELD
    content = job.begin([point]).content("s")
    kit.new_process()
    assert job.begin([point]).content("s") == content


def test_files_that_are_held_are_not_protected(job, point):
    for value in range(12):
        state = change(job, point, range(3), value)
        assert not state.protected


def test_a_copy_of_an_earlier_version_needs_no_request(kit, job, storage, point):
    """Also after the deltas in between have been folded."""
    change(job, point, range(5000), 0)
    behind = kit.new_process()
    change(job, point, range(250), 1)
    kit.new_process()
    for value in range(2, 8):
        change(job, point, range(250), value)
    storage.reads.clear()
    kit.new_process(behind)
    assert job.begin([point]).content("s")[None, 3] == 7
    assert not storage.reads


def test_a_rescale_reads_what_the_manifests_hold(kit, job, storage, point):
    change(job, point, range(64), 0)
    change(job, point, range(20), 1)
    expected = job.begin([point]).content("s")
    halves = [job.begin([point], groups) for groups in job.ranges(2)]
    for half in halves:
        half.put("s", 100 + half.backend._opening.range.start, 5)
    job.history.append([job.end(half) for half in halves])
    assert not storage.writes
    kit.new_process()
    expected |= {(None, 100): 5, (None, 108): 5}
    assert job.begin([point]).content("s") == expected


@pytest.mark.parametrize("at", [0, 30, -1])
def test_altered_content_is_corrupt_and_named(kit, job, point, at):
    state = change(job, point, range(10), 1)
    (file,) = state.files
    data = bytearray(file.data)
    data[at] ^= 1
    job.history[-1][0] = attrs.evolve(
        job.history[-1][0],
        state=attrs.evolve(state, files=[attrs.evolve(file, data=bytes(data))]),
    )
    kit.new_process()
    with pytest.raises(CorruptStateError, match=rf"{file.name}, which the manifest holds"):
        job.begin([point])


def test_many_held_snapshots_become_one(kit, job, point):
    """After a rescale to one subtask, its manifest would hold those of all."""
    parts = [job.begin([point], groups) for groups in job.ranges(16)]
    for number, part in enumerate(parts):
        for key in range(number, 16 * 150, 16):
            part.put("s", key, key)
    job.history.append([job.end(part) for part in parts])
    total = sum(f.size for m in job.history[-1] for f in m.state.files)
    assert total > MOST_HELD_TOGETHER
    state = change(job, point, [0], 1)
    assert [file.meta["role"] for file in state.files] == ["snapshot"]
