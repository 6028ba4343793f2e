"""Scans of lists and maps that are stored in several runs."""

from __future__ import annotations

import itertools
import random

import pytest

from forebay_backend_lsm.cache import CACHE
from forebay_state_api.contract.changes import ABSENT, Shape


@pytest.mark.parametrize("ttl", [False, True])
@pytest.mark.parametrize("cache", [0, 1 << 28])
def test_a_list_is_what_was_appended_since_it_was_replaced(new_operator, kit, ttl, cache):
    operator = new_operator(block_cache_bytes=cache)
    spec = kit.spec(shape=Shape.LIST, ttl=ttl)
    stored = lambda numbers: [(n, n) for n in numbers] if ttl else [*numbers]
    operator.commit((spec, kit.appended({"k": stored([99]), "other": stored(range(40))})))
    operator.commit((spec, kit.appended({"k": stored(range(3))}, replaced=True)))
    operator.commit((spec, kit.appended({"other": stored([40])})))
    operator.commit((spec, kit.appended({"k": stored(range(3, 200))})))
    assert operator.scanned(spec, "k") == stored(range(200))
    assert operator.scanned(spec, "other") == stored(range(41))
    operator.commit((spec, kit.appended({"k": []}, replaced=True)))
    assert operator.scanned(spec, "k") == []


def test_a_list_in_many_runs_is_read_at_once(new_operator, kit):
    operator, spec = new_operator(), kit.spec(shape=Shape.LIST)
    for n in range(6):
        operator.commit((spec, kit.appended({"k": [n]})))
    CACHE.clear()
    table = operator.table(spec)
    operator.storage.reset()
    pages = table.scan(None, kit.group_of("k"), "k").pages(10)
    assert [*itertools.chain(*pages)] == [*range(6)]
    assert operator.storage.counts == {"get_ranges": 6}


@pytest.mark.parametrize("cache", [0, 1 << 28])
@pytest.mark.parametrize("seed", range(5))
def test_a_map_is_the_newest_of_its_entries(new_operator, kit, cache, seed):
    operator = new_operator(block_cache_bytes=cache)
    spec = kit.spec(shape=Shape.MAP, value=int)
    rng = random.Random(seed)
    model = {"k": {}, "other": {}}
    for _ in range(6):
        key, cleared = rng.choice(["k", "other"]), rng.random() < 0.3
        count = rng.choice([0, 2, 30, 400])
        entries = {
            str(n): rng.choice([ABSENT, rng.randrange(99)]) for n in rng.sample(range(500), count)
        }
        operator.commit((spec, kit.entered({key: entries}, cleared=cleared)))
        model[key] = {**({} if cleared else model[key]), **entries}
    for key, entries in model.items():
        expected = {e: v for e, v in entries.items() if v is not ABSENT}
        found = operator.scanned(spec, key)
        assert dict(found) == expected
        assert len(found) == len(expected)
        asked = [(kit.group_of(key), key, str(n)) for n in range(500)]
        answers = [expected.get(str(n), ABSENT) for n in range(500)]
        assert operator.table(spec).get_entries(None, asked) == answers


def test_the_first_page_of_a_large_map_reads_little(new_operator, kit):
    operator, spec = new_operator(), kit.spec(shape=Shape.MAP)
    operator.commit((spec, kit.entered({"k": {str(n): n for n in range(5000)}})))
    CACHE.clear()
    table = operator.table(spec)
    operator.storage.reset()
    pages = table.scan(None, kit.group_of("k"), "k").pages(10)
    first = next(pages)
    assert len(first) == 10
    assert operator.storage.bytes_read < operator.last.bytes_total / 20
    assert dict(itertools.chain(first, *pages)) == {str(n): n for n in range(5000)}


def test_maps_of_other_keys_cost_no_request(new_operator, kit):
    operator, spec = new_operator(), kit.spec(shape=Shape.MAP)
    operator.commit((spec, kit.entered({str(n): {"a": n} for n in range(200)})))
    CACHE.clear()
    table = operator.table(spec)
    operator.storage.reset()
    for n in range(50):
        pages = table.scan(None, kit.group_of(f"no {n}"), f"no {n}").pages(10)
        assert [*pages] == []
    assert operator.storage.counts["get_ranges"] <= 3, "a filter lets few of them pass"


def test_a_map_of_which_nothing_else_is_near(new_operator, kit):
    """Other maps may share the address bits of one; equality of prefixes decides."""
    operator, spec = new_operator(), kit.spec(shape=Shape.MAP)
    keys = [str(n) for n in range(400)]
    operator.commit((spec, kit.entered({key: {f"{key}-{i}": i for i in range(3)} for key in keys})))
    for key in keys[::40]:
        assert dict(operator.scanned(spec, key)) == {f"{key}-{i}": i for i in range(3)}


def test_user_keys_that_were_stored_as_another_type_are_found(new_operator, kit):
    """An int became a float, so its bytes, and hence its address, have changed."""
    operator = new_operator()
    old = kit.spec(shape=Shape.MAP, user_key=int)
    new = kit.spec(shape=Shape.MAP, user_key=float)
    operator.commit((old, kit.entered({"k": {n: n for n in range(100)}})))
    operator.commit((new, kit.entered({"k": {1.0: 10, 2.0: ABSENT, 0.5: 5}})))
    expected = {float(n): n for n in range(100)} | {1.0: 10, 0.5: 5}
    del expected[2.0]
    found = operator.scanned(new, "k")
    assert dict(found) == expected
    assert len(found) == len(expected)
    group = kit.group_of("k")
    asked = [(group, "k", entry) for entry in (1.0, 2.0, 3.0, 0.5, 0.25)]
    assert operator.table(new).get_entries(None, asked) == [10, ABSENT, 3, 5, ABSENT]
