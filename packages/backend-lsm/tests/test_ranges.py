"""Ordered maps in several runs: ranges, single entries, blocks that a read needs."""

from __future__ import annotations

import itertools
import random

import pytest

from forebay_backend_lsm import addressing
from forebay_backend_lsm.cache import CACHE
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.files.checking import damage_of
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.files import CommittedState
from forebay_state_api.contract.key_range import KeyRange

MICROSECONDS = 1_767_225_600_000_000
"""A time as an int: keys that differ by less than twelve days have one address."""


@pytest.fixture
def ordered(kit):
    return lambda user_key=int, **more: kit.spec(
        shape=Shape.MAP, user_key=user_key, ordered=True, **more
    )


def ranged(operator, spec, key, part, page_size=7):
    scan = operator.table(spec).scan_range(None, sum(map(ord, key)) % 16, key, part)
    pages = [*scan.pages(page_size)]
    assert all(0 < len(page) <= page_size for page in pages)
    return [*itertools.chain.from_iterable(pages)]


def compact(operator, specs, *, bottom=True):
    """Replace the files of the newest version by what a compaction makes of them."""
    job = CompactionJob(
        id="1",
        attempt=1,
        format=LsmCompactor.format,
        operator="q/u",
        inputs=operator.last.files,
        output_prefix="data/compacted/",
        range=operator.range,
        now_us=1,
        target_bytes=20_000,
        lease_s=1.0,
        heartbeat_s=1.0,
        options={"bottom": bottom, "block_bytes": 512},
    )
    done = LsmCompactor().compact(job, operator.storage, lambda: False)
    operator.install(CommittedState(files=done.outputs), specs)
    return done


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "start"),
    [
        *((0, 0), (1, MICROSECONDS)),
        *(
            pytest.param(seed, start, marks=pytest.mark.slow)
            for seed, start in ((0, MICROSECONDS), (1, 0), (2, 0), (2, MICROSECONDS))
        ),
    ],
)
def test_a_range_is_the_newest_of_its_entries(new_operator, kit, ordered, seed, start):
    operator, spec = new_operator(), ordered()
    rng = random.Random(seed)
    model = {"k": {}, "other": {}}

    def check():
        for key, entries in model.items():
            live = sorted((e, v) for e, v in entries.items() if v is not ABSENT)
            for _ in range(6):
                low, high = (rng.choice([None, start + rng.randrange(520)]) for _ in range(2))
                expected = [
                    (e, v)
                    for e, v in live
                    if (low is None or low <= e) and (high is None or e < high)
                ]
                assert ranged(operator, spec, key, KeyRange(low, high)) == expected
                down = KeyRange(low, high, descending=True)
                assert ranged(operator, spec, key, down) == expected[::-1]
            assert operator.scanned(spec, key) == live
            some = rng.sample(range(500), 40)
            asked = [(kit.group_of(key), key, start + n) for n in some]
            answers = [entries.get(start + n, ABSENT) for n in some]
            assert operator.table(spec).get_entries(None, asked) == answers

    for _ in range(6):
        key, cleared = rng.choice(["k", "other"]), rng.random() < 0.3
        entries = {
            start + n: rng.choice([ABSENT, rng.randrange(99)])
            for n in rng.sample(range(500), rng.choice([0, 2, 30, 400]))
        }
        operator.commit((spec, kit.entered({key: entries}, cleared=cleared)))
        model[key] = {**({} if cleared else model[key]), **entries}
    check()
    assert not [*itertools.chain(*(damage_of(operator.storage, f) for f in operator.last.files))]
    compact(operator, [spec])
    assert not [*itertools.chain(*(damage_of(operator.storage, f) for f in operator.last.files))]
    check()


@pytest.mark.long
def test_maps_whose_prefixes_share_their_bits_do_not_mix(new_operator, kit, ordered, monkeypatch):
    """All maps get one address: only the bytes of their keys differ."""
    monkeypatch.setattr(addressing, "xxh3_64_intdigest", lambda _: 0)
    operator, spec = new_operator(), ordered(tuple[str, int])
    keys = [str(n) for n in range(24)]
    for half in (0, 1):
        changes = {k: {(k, i): i for i in range(half, 9, 2)} for k in keys}
        operator.commit((spec, kit.entered(changes)))
    operator.commit((spec, kit.entered({"7": {("7", 5): -5}}, cleared=True)))
    for key in keys:
        stored = [((key, i), i) for i in range(9)] if key != "7" else [(("7", 5), -5)]
        assert operator.scanned(spec, key) == stored
        part = KeyRange((key, 3), (key, 6), descending=True)
        assert ranged(operator, spec, key, part) == [e for e in stored if 3 <= e[0][1] < 6][::-1]
        asked = [(kit.group_of(key), key, (key, i)) for i in range(10)]
        found = dict(stored)
        assert operator.table(spec).get_entries(None, asked) == [
            found.get((key, i), ABSENT) for i in range(10)
        ]


@pytest.mark.parametrize("start", [0, MICROSECONDS])
def test_a_range_reads_what_it_needs(new_operator, kit, ordered, start):
    operator, spec = new_operator(), ordered()
    operator.commit((spec, kit.entered({"k": {start + n: n for n in range(20_000)}})))

    def bytes_of(part, page_size=10):
        CACHE.clear()
        table = operator.table(spec)
        operator.storage.reset()
        first = next(table.scan_range(None, kit.group_of("k"), "k", part).pages(page_size))
        return len(first), operator.storage.bytes_read

    few = operator.last.bytes_total / 50
    for part in (
        KeyRange(start + 11_000, start + 11_010),
        KeyRange(start + 11_000),
        KeyRange(high=start + 11_000, descending=True),
        KeyRange(descending=True),
    ):
        count, read = bytes_of(part)
        assert count == 10
        assert read < few


def test_entries_of_several_runs_are_read_together(new_operator, kit, ordered):
    operator, spec = new_operator(), ordered()
    for part in range(4):
        entries = {n: n for n in range(part, 4_000, 4)}
        operator.commit((spec, kit.entered({"k": entries}, cleared=part == 1)))
    CACHE.clear()
    table = operator.table(spec)
    operator.storage.reset()
    asked = [(kit.group_of("k"), "k", n) for n in (1001, 2002, 3003, 1000)]
    assert table.get_entries(None, asked) == [1001, 2002, 3003, ABSENT]
    assert operator.storage.counts == {"get_ranges": 4}


def test_a_large_map_is_compacted_into_several_blocks(new_operator, kit, ordered):
    operator, spec = new_operator(), ordered()
    for part in range(3):
        entries = {MICROSECONDS + n: n for n in range(part, 3_000, 3)}
        operator.commit((spec, kit.entered({"k": entries})))
    done = compact(operator, [spec])
    assert done.entries_out == 3_000
    assert ranged(operator, spec, "k", KeyRange(MICROSECONDS + 1_500, MICROSECONDS + 1_503)) == [
        (MICROSECONDS + n, n) for n in (1_500, 1_501, 1_502)
    ]
    CACHE.clear()
    table = operator.table(spec)
    operator.storage.reset()
    part = KeyRange(MICROSECONDS + 1_500, MICROSECONDS + 1_510)
    assert len(next(table.scan_range(None, kit.group_of("k"), "k", part).pages(100))) == 10
    size = sum(file.size for file in operator.last.files)
    assert operator.storage.bytes_read < size / 10
