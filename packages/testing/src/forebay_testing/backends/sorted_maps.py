"""`SortedMapState` (docs/reference/state.md): ranges in the order of the keys."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.errors import StateMigrationError
from forebay_state_api.job.descriptors import MapStateDescriptor, SortedMapStateDescriptor
from forebay_state_api.job.ttl import StateTtlConfig, UpdateType
from forebay_testing.backends.kinds import BERLIN
from forebay_testing.backends.search import Search
from forebay_testing.backends.subject import (
    ENGINES,
    SECOND,
    BackendSubject,
    Manner,
    NewJob,
    NewStorage,
    Recorded,
)
from forebay_testing.job import KeyedJob

_NEW_YEAR: Final = datetime(2026, 1, 1)  # noqa: DTZ001 - keys without a zone
IN_ORDER: Final[Mapping[str, tuple[Any, list[Any]]]] = {
    "int": (int, [-(2**70), -65537, -256, -255, -2, -1, 0, 1, 127, 128, 255, 256, 2**40, 2**3000]),
    "float": (
        float,
        [float("-inf"), -1e300, -1.5, -1e-300, 0.0, 5e-324, 1.0, 1.5, 2.0**60, float("inf")],
    ),
    "Decimal": (
        Decimal,
        [
            *map(Decimal, ["-Infinity", "-1E+9", "-10", "-9.5", "-0.1", "0", "1E-9", "0.1"]),
            *map(Decimal, ["0.11", "0.2", "9", "10", "11", "1E+9", "Infinity"]),
        ],
    ),
    "str": (
        str,
        ["", "\0", "\0\0", "\0a", "a", "a\0", "a\0b", "a\x01", "ab", "b", "ä", "\uffff", "😀"],
    ),
    "bytes": (bytes, [b"", b"\0", b"\0\0", b"\0\x01", b"\0\xff", b"\x01", b"a", b"a\0", b"\xff"]),
    "date": (date, [date.min, date(1969, 12, 31), date(1970, 1, 1), date(2026, 2, 28), date.max]),
    "datetime": (
        datetime,
        [
            datetime.min,  # noqa: DTZ901
            _NEW_YEAR,
            _NEW_YEAR + timedelta(microseconds=1),
            datetime.max,  # noqa: DTZ901
            datetime(1969, 12, 31, tzinfo=UTC),
            _NEW_YEAR.replace(tzinfo=UTC),
        ],
    ),
    "time": (time, [time.min, time(0, 0, 0, 1), time(12), time.max]),
    "timedelta": (
        timedelta,
        [timedelta.min, timedelta(-1), timedelta(0), timedelta(microseconds=1), timedelta.max],
    ),
    "UUID": (UUID, [UUID(int=0), UUID(int=255), UUID(int=256), UUID(int=2**127)]),
    "tuple": (
        tuple[str, int],
        [("", -1), ("", 0), ("a", -300), ("a", 300), ("a\0", -1), ("a\0b", 0), ("ab", -1)],
    ),
    "tuple of any length": (tuple[int, ...], [(), (-1,), (0,), (0, -5), (0, 0), (0, 0, 0), (1,)]),
}
"""Name of a type → the type, and keys in ascending order."""

_NEPAL: Final = timezone(timedelta(hours=5, minutes=45))
_ZONED: Final = st.datetimes(
    datetime(1900, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(2100, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    timezones=st.sampled_from([UTC, BERLIN, _NEPAL]),
)
_FLOATS: Final = st.floats(allow_nan=False)
_TEXT: Final = st.text("ab\0\xff😀", max_size=4)
DRAWN: Final[Mapping[str, tuple[Any, Any]]] = {
    "int": (int, st.integers() | st.integers(-300, 300) | st.integers(-(2**900), 2**900)),
    "float": (float, _FLOATS | st.sampled_from([-0.0, 0.0])),
    "str": (str, _TEXT),
    "tuple with a datetime": (tuple[datetime, float], st.tuples(_ZONED, _FLOATS)),
    "tuple of any length": (tuple[int, ...], st.lists(st.integers(-2, 2), max_size=3).map(tuple)),
}
"""Name of a type → the type, and a strategy for keys.

One type for each form of packed keys; the codecs' own tests draw keys of every type."""


def in_utc(key: Any) -> Any:
    """Return a key with its instants in UTC, since Python compares wall clocks within a zone."""
    if isinstance(key, tuple):
        return tuple(map(in_utc, key))
    return key.astimezone(UTC) if isinstance(key, datetime) and key.tzinfo else key


class SortedMapTests(BackendSubject):
    """Ranges of a sorted map, within a micro-batch and across several."""

    order_examples = 4

    @pytest.fixture
    def tens(self, new_job: NewJob, manner: Manner) -> KeyedJob:
        """A job with a sorted map ``s`` that holds the tens up to 90, stored in two versions."""
        job = new_job(SortedMapStateDescriptor("s", int, int), **manner._asdict())
        job.do("k", *(("s.put", n, n) for n in (70, 10, 50, 90, 30)), ("s.put", 40, 0))
        job.do("k", *(("s.put", n, n) for n in (80, 20, 60, 40)))
        job.restart()
        return job

    def test_a_range_begins_with_its_start_and_ends_before_its_stop(self, tens: KeyedJob) -> None:
        assert tens.do(
            "k",
            ("s.range", 30, 60),
            ("s.range", 31, 61),
            ("s.range", None, 20),
            ("s.range", 80),
            ("s.range", 35, 36),
            ("s.range", 60, 30),
            ("s.range", 30, 30),
        ) == [
            [(30, 30), (40, 40), (50, 50)],
            [(40, 40), (50, 50), (60, 60)],
            [(10, 10)],
            [(80, 80), (90, 90)],
            [],
            [],
            [],
        ]
        assert tens.do("k", ("s.range",)) == [[(n, n) for n in range(10, 100, 10)]]
        assert tens.do("other", ("s.range",)) == [[]]

    def test_the_first_and_the_last_of_a_range(self, tens: KeyedJob) -> None:
        calls = [("s.first",), ("s.last",), ("s.first", 41), ("s.last", None, 40)]
        assert tens.do("k", *calls) == [(10, 10), (90, 90), (50, 50), (30, 30)]
        calls = [("s.first", 91), ("s.last", None, 10), ("s.first", 50, 60), ("s.last", 50, 60)]
        assert tens.do("k", *calls) == [None, None, (50, 50), (50, 50)]
        assert tens.do("other", ("s.first",), ("s.last",)) == [None, None]

    def test_a_range_sees_this_batchs_writes_in_their_places(self, tens: KeyedJob) -> None:
        assert tens.do(
            "k",
            ("s.put", 35, 1),
            ("s.put", 50, -50),
            ("s.remove", 40),
            ("s.put", 5, 5),
            ("s.put", 95, 95),
            ("s.range", 30, 61),
            ("s.first",),
            ("s.last",),
            ("s.remove", 5),
            ("s.remove", 10),
            ("s.remove", 95),
            ("s.first",),
            ("s.last",),
        ) == [
            *[None] * 5,
            [(30, 30), (35, 1), (50, -50), (60, 60)],
            (5, 5),
            (95, 95),
            *[None] * 3,
            (20, 20),
            (90, 90),
        ]
        assert tens.do("k", ("s.range", 0, 61)) == [
            [(20, 20), (30, 30), (35, 1), (50, -50), (60, 60)]
        ]

    def test_a_removed_range_is_gone_at_once_and_for_good(self, tens: KeyedJob) -> None:
        assert tens.do(
            "k",
            ("s.put", 25, 25),
            ("s.get", 30),
            ("s.remove_range", 20, 50),
            ("s.range", None, 70),
            ("s.get", 30),
            ("s.get", 40),
            ("s.contains", 25),
            ("s.first", 20),
            ("s.put", 40, -40),
            ("s.range", None, 70),
            ("s.get", 40),
        ) == [
            None,
            30,
            None,
            [(10, 10), (50, 50), (60, 60)],
            None,
            None,
            False,
            (50, 50),
            None,
            [(10, 10), (40, -40), (50, 50), (60, 60)],
            -40,
        ]
        after = [(n, -40 if n == 40 else n) for n in (10, 40, 50, 60, 70, 80, 90)]
        assert tens.do("k", ("s.range",)) == [after]
        tens.restart()
        assert tens.do("k", ("s.range",), ("s.get", 30), ("s.get", 25)) == [after, None, None]
        tens.do("k", ("s.remove_range", 60))
        tens.do("k", ("s.remove_range", None, 40), ("s.remove_range", None, 45))
        assert tens.do("k", ("s.range",)) == [[(50, 50)]]
        tens.do("k", ("s.remove_range",))
        tens.restart()
        assert tens.do("k", ("s.range",), ("s.is_empty",)) == [[], True]

    def test_what_was_cleared_is_in_no_range(self, tens: KeyedJob) -> None:
        calls = [("s.clear",), ("s.put", 20, 2), ("s.range",), ("s.last",), ("s.remove_range", 0)]
        assert tens.do("k", *calls, ("s.range",), ("s.put", 30, 3)) == [
            *[None, None, [(20, 2)], (20, 2), None, [], None]
        ]
        assert tens.do("k", ("s.range",), ("s.get", 20)) == [[(30, 3)], None]

    def test_ranges_belong_to_a_namespace(self, tens: KeyedJob) -> None:
        tens.do("k", ("namespace", "w"), ("s.put", 15, 1), ("s.put", 25, 2))
        read = [("s.range", None, 30), ("namespace", "w"), ("s.range", None, 30)]
        assert tens.do("k", *read) == [[(10, 10), (20, 20)], None, [(15, 1), (25, 2)]]
        tens.do("k", ("namespace", "w"), ("s.remove_range", 20))
        assert tens.do("k", *read) == [[(10, 10), (20, 20)], None, [(15, 1)]]

    def test_it_is_a_map_in_ascending_order(self, tens: KeyedJob) -> None:
        async def read(f: Any, _: Any, __: Any) -> list[Any]:
            keys = [key async for key in await f.s.async_keys()]
            values = [value async for value in await f.s.async_values()]
            f.s.put_all({15: 1, 5: 1})
            items = [item async for item in await f.s.async_items()]
            return [keys, values, [key for key, _ in items], await f.s.async_get(5)]

        def opened(f: Any, context: Any) -> None:
            f.s = context.get_sorted_map_state(tens.descriptors[0])

        stored = list(range(10, 100, 10))
        now = [5, 10, 15, *stored[1:]]
        assert tens.run(Recorded(opened, read), [("k",)]) == [stored, stored, now, 1]

    def test_an_iterator_shows_the_range_as_it_was(self, tens: KeyedJob) -> None:
        async def read(f: Any, _: Any, __: Any) -> list[Any]:
            f.s.put(25, 25)
            iterator = await f.s.async_range(20, 80)
            seen = []
            async for key, _ in iterator:
                seen.append(key)
                f.s.remove(key)
                f.s.put(key + 1, 0)
                f.s.remove_range(70)
            again = [key async for key, _ in iterator]
            return [seen, again, [key async for key in await f.s.async_keys()]]

        def opened(f: Any, context: Any) -> None:
            f.s = context.get_sorted_map_state(tens.descriptors[0])

        before = [20, 25, 30, 40, 50, 60, 70]
        left = [10, 21, 26, 31, 41, 51, 61]
        assert tens.run(Recorded(opened, read), [("k",)]) == [before, before, left]

    @pytest.mark.parametrize("name", IN_ORDER)
    def test_the_order_is_pythons(self, new_job: NewJob, name: str) -> None:
        key_type, keys = IN_ORDER[name]
        job = new_job(SortedMapStateDescriptor("s", key_type, int), settings=ENGINES["tight"])
        shuffled = random.Random(1).sample(range(len(keys)), len(keys))
        for part in (shuffled[::2], shuffled[1::2]):
            job.do("k", *(("s.put", keys[n], n) for n in part))
        job.restart()
        numbered = [(key, n) for n, key in enumerate(keys)]
        assert job.do("k", ("s.range",), ("s.range", keys[1], keys[-1])) == [
            numbered,
            numbered[1:-1],
        ]
        neighbours = list(itertools.pairwise(keys))
        ranges = [("s.range", low, high) for low, high in neighbours]
        lasts = [("s.last", None, high) for _, high in neighbours]
        assert job.do("k", *ranges) == [[entry] for entry in numbered[:-1]]
        assert job.do("k", *lasts) == numbered[:-1]

    @pytest.mark.parametrize("name", DRAWN)
    def test_drawn_keys_are_in_the_order_of_python(
        self, new_job: NewJob, new_storage: NewStorage, search: Search, name: str
    ) -> None:
        key_type, drawn = DRAWN[name]

        @search.limits(self.order_examples)
        @search.seeded
        @given(
            keys=st.lists(drawn, min_size=2, max_size=8),
            bounds=st.tuples(drawn, drawn),
            stored=st.integers(0, 8),
        )
        def orders(keys: list[Any], bounds: tuple[Any, Any], stored: int) -> None:
            states = [SortedMapStateDescriptor("s", key_type, int)]
            job = new_job(*states, settings=ENGINES["tight"], storage=new_storage())
            puts = [("s.put", key, n) for n, key in enumerate(keys)]
            job.do("k", *puts[:stored])
            job.restart()
            entries = sorted({in_utc(key): n for n, key in enumerate(keys)}.items())
            low, high = map(in_utc, bounds)
            within = [entry for entry in entries if low <= entry[0] < high]
            reads = [("s.range",), ("s.range", *bounds), ("s.first", bounds[0])]
            after = next((entry for entry in entries if low <= entry[0]), None)
            expected = [entries, within, after]
            assert job.do("k", *puts[stored:], *reads)[-3:] == expected
            job.restart()
            assert job.do("k", *reads, ("s.remove_range", *bounds))[:3] == expected
            left = [entry for entry in entries if entry not in within]
            assert job.do("k", ("s.range",)) == [left]

        orders()

    def test_equal_keys_are_one_entry(self, new_job: NewJob) -> None:
        job = new_job(SortedMapStateDescriptor("s", float, int))
        job.do("k", ("s.put", -0.0, 1), ("s.put", 1, 2))
        assert job.do("k", ("s.put", 0.0, 3), ("s.range", -0.0, 1.5)) == [
            None,
            [(0.0, 3), (1.0, 2)],
        ]

    def test_a_bound_may_be_the_beginning_of_a_tuple(self, new_job: NewJob) -> None:
        job = new_job(SortedMapStateDescriptor("s", tuple[int, str], int))
        keys = [(1, "b"), (2, ""), (2, "a"), (2, "b"), (3, "a")]
        job.do("k", *(("s.put", key, 0) for key in keys))
        job.restart()
        asked = [
            ("s.range", (2,), (3,)),
            ("s.first", (2,)),
            ("s.last", None, (2,)),
            ("s.range", ()),
        ]
        expected = [
            [(key, 0) for key in keys[1:4]],
            ((2, ""), 0),
            ((1, "b"), 0),
            [(k, 0) for k in keys],
        ]
        assert job.do("k", *asked) == expected
        job.do("k", ("s.remove_range", (2,), (3,)))
        assert job.do("k", ("s.keys",)) == [[(1, "b"), (3, "a")]]

    def test_expired_entries_are_in_no_range(self, new_job: NewJob, manner: Manner) -> None:
        ttl = StateTtlConfig(10 * SECOND)
        job = new_job(SortedMapStateDescriptor("s", int, int, ttl=ttl), **manner._asdict())
        job.do("k", *(("s.put", n, n) for n in (1, 2, 5, 9)))
        job.clock.advance(6 * SECOND)
        job.do("k", ("s.put", 2, -2), ("s.put", 4, 4))
        job.clock.advance(6 * SECOND)
        calls = [
            ("s.first",),
            ("s.last",),
            ("s.range",),
            ("s.put", 3, 3),
            ("s.range", 3),
            ("s.last", 5),
        ]
        assert job.do("k", *calls) == [
            (2, -2),
            (4, 4),
            [(2, -2), (4, 4)],
            None,
            [(3, 3), (4, 4)],
            None,
        ]
        assert sorted(job.peek(job.descriptors[0], "k")) == [2, 3, 4]

    def test_a_range_renews_what_it_reads(self, new_job: NewJob, manner: Manner) -> None:
        ttl = StateTtlConfig(10 * SECOND, update_type=UpdateType.ON_READ_AND_WRITE)
        job = new_job(SortedMapStateDescriptor("s", int, int, ttl=ttl), **manner._asdict())
        job.do("k", *(("s.put", n, n) for n in range(6)))
        job.clock.advance(6 * SECOND)
        assert job.do("k", ("s.range", 2, 4), ("s.first",)) == [[(2, 2), (3, 3)], (0, 0)]
        job.clock.advance(6 * SECOND)
        assert job.do("k", ("s.range",)) == [[(0, 0), (2, 2), (3, 3)]]

    def test_a_ttl_may_be_switched_on_and_off(self, new_job: NewJob) -> None:
        ttl = StateTtlConfig(10 * SECOND)
        job = new_job(SortedMapStateDescriptor("s", int, int))
        job.do("k", *(("s.put", n, n) for n in (5, 1, 3)))
        for config, kept in ((ttl, [(1, 1), (3, 3)]), (None, [(1, 1), (3, 3)]), (ttl, [])):
            job.descriptors = [SortedMapStateDescriptor("s", int, int, ttl=config, switch_ttl=True)]
            job.restart()
            assert job.do("k", ("s.remove_range", 4), ("s.last",))[1] == (3, 3)
            job.clock.advance(10 * SECOND if not kept else 9 * SECOND)
            assert job.do("k", ("s.range",)) == [kept]

    def test_ranges_survive_a_change_of_the_parallelism(self, new_job: NewJob) -> None:
        job = new_job(SortedMapStateDescriptor("s", int, int), parallelism=2)
        for key in "abcdef":
            job.do(key, *(("s.put", n, n) for n in range(5)))
            job.do(key, ("s.remove_range", 1, 3))
        for parallelism in (3, 1):
            job.restart(parallelism=parallelism, same_process=False)
            for key in "abcdef":
                assert job.do(key, ("s.range", 0, 4), ("s.last",)) == [[(0, 0), (3, 3)], (4, 4)]

    def test_the_values_type_may_change_and_the_keys_may_not(self, new_job: NewJob) -> None:
        job = new_job(SortedMapStateDescriptor("s", int, int))
        job.do("k", ("s.put", 2, 2), ("s.put", 1, 1), ("s.put", 3, 3))
        for changed in (
            SortedMapStateDescriptor("s", float, int),
            SortedMapStateDescriptor("s", str, int),
            MapStateDescriptor("s", int, int),
        ):
            job.restart()
            job.descriptors = [changed]
            with pytest.raises(StateMigrationError, match=r"state 's' was stored with"):
                job.do("k", ("s.get", 1))
        job.restart()
        job.descriptors = [SortedMapStateDescriptor("s", int, float)]
        job.do("k", ("s.put", 2, 2.5))
        assert job.do("k", ("s.range", 2), ("s.get", 1)) == [[(2, 2.5), (3, 3.0)], 1.0]
