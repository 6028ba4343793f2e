"""The change feed: what it says of each kind of state, and how it goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import (
    AbandonedTimelineError,
    ConfigurationError,
    VersionGoneError,
)
from forebay_state_processor.reading import START, Operation, Position, open_feed
from forebay_testing import ManualClock

COUNT = ValueStateDescriptor("count", int)
ANY = ValueStateDescriptor("any")
SEEN = ListStateDescriptor("seen", int)
CARDS = MapStateDescriptor("cards", str, float)
STATES = (COUNT, ANY, SEEN, CARDS)


@pytest.fixture
def feed(tmp_path):
    return open_feed(str(tmp_path), query="query", uid="operator", provisional=True)


def shown(difference, state, **given):
    """Return the rows of a difference, short and sorted."""
    found = [
        (row.key, row.operation.value, row.user_key, row.value, row.old)
        for row in difference.rows(state, **given)
    ]
    return sorted(found, key=repr)


@pytest.fixture
def newest(feed):
    """Return the rows of the newest version alone."""

    def rows(state):
        after = feed.after(START)
        start = after[-2] if len(after) > 1 else START
        with feed.between(start, after[-1]) as difference:
            return shown(difference, state)

    return rows


@pytest.mark.parametrize("key_type", [str, None])
def test_values(make_job, newest, key_type):
    job = make_job(*STATES, key_type=key_type)
    job.scripts([("a", [("count.update", 1)]), ("b", [("count.update", 2)])])
    assert newest("count") == [("a", "put", None, 1, None), ("b", "put", None, 2, None)]
    job.scripts([("a", [("count.update", 3)]), ("b", [("count.clear",)])])
    assert newest("count") == [("a", "put", None, 3, 1), ("b", "removed", None, None, 2)]
    job.do("a", ("count.update", 3))
    assert newest("count") == []


def test_equal_values_of_two_types_differ(make_job, newest):
    job = make_job(*STATES)
    job.scripts([("a", [("any.update", 1)]), ("b", [("any.update", float("nan"))])])
    job.scripts([("a", [("any.update", True)]), ("b", [("any.update", float("nan"))])])
    assert newest("any") == [("a", "put", None, True, 1)]


@pytest.mark.long
def test_lists(make_job, newest):
    job = make_job(*STATES)
    job.do("a", ("seen.add", 1), ("seen.add", 2))
    assert newest("seen") == [("a", "appended", None, [1, 2], None)]
    job.do("a", ("seen.add", 3))
    assert newest("seen") == [("a", "appended", None, [3], [1, 2])]
    job.do("a", ("seen.update", [1, 2, 9]))
    assert newest("seen") == [("a", "replaced", None, [1, 2, 9], [1, 2, 3])]
    job.do("a", ("seen.update", [1, 2]))
    assert newest("seen") == [("a", "replaced", None, [1, 2], [1, 2, 9])]
    job.do("a", ("seen.clear",))
    assert newest("seen") == [("a", "cleared", None, None, [1, 2])]


def test_maps(make_job, newest):
    job = make_job(*STATES)
    job.do("a", ("cards.put", "x", 1.0), ("cards.put", "y", 2.0), ("cards.put", "none", None))
    job.do("a", ("cards.put", "x", 3.0), ("cards.remove", "y"), ("cards.put", "z", 4.0))
    assert newest("cards") == [
        ("a", "put", "x", 3.0, 1.0),
        ("a", "put", "z", 4.0, None),
        ("a", "removed", "y", None, 2.0),
    ]
    job.do("a", ("cards.clear",))
    assert [row[1:3] for row in newest("cards")] == [
        ("removed", "none"),
        ("removed", "x"),
        ("removed", "z"),
    ]


def test_expiry_is_a_row_of_the_first_batch_past_it(make_job, feed):
    ttl = StateTtlConfig(timedelta(minutes=10), cleanup=())
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    job = make_job(
        ValueStateDescriptor("count", int, ttl=ttl),
        ListStateDescriptor("seen", int, ttl=ttl),
        clock=clock,
    )
    job.do("a", ("count.update", 1), ("seen.add", 1))
    clock.advance(timedelta(minutes=6))
    job.do("a", ("seen.add", 2))
    clock.advance(timedelta(minutes=6))
    job.do("b", ("count.update", 5))
    second, third = feed.after(START)[1:]
    with feed.between(second, third) as difference:
        assert shown(difference, "count") == [
            ("a", "removed", None, None, 1),
            ("b", "put", None, 5, None),
        ]
        assert shown(difference, "seen") == [("a", "replaced", None, [2], [1, 2])]
        assert difference.to_arrow("count").schema.names == [
            *("key", "namespace", "key_group", "operation", "value", "written", "version", "run")
        ]
    with feed.between(second, third, show_expired=True) as difference:
        assert shown(difference, "count") == [("b", "put", None, 5, None)]


def test_a_renewed_time_of_last_access_is_a_change(make_job, newest):
    ttl = StateTtlConfig(timedelta(minutes=10))
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    job = make_job(ValueStateDescriptor("count", int, ttl=ttl), clock=clock)
    job.do("a", ("count.update", 1))
    clock.advance(timedelta(minutes=1))
    job.do("a", ("count.update", 1))
    assert newest("count") == [("a", "put", None, 1, 1)]


def test_arrow(make_job, feed):
    job = make_job(*STATES, key_type=tuple[str, int], parallelism=2)
    job.do(("a", 1), ("cards.put", "x", 1.0), ("seen.add", 5))
    job.do(("a", 1), ("cards.put", "x", 2.0), ("seen.add", 6))
    first, second = feed.after(START)
    with feed.between(first, second) as difference:
        (row,) = difference.to_arrow("cards", old=True).read_all().to_pylist()
        assert row.pop("key_group") in range(8)
        assert row == {
            "key_1": "a",
            "key_2": 1,
            "namespace": None,
            "operation": "put",
            "user_key": "x",
            "value": 2.0,
            "old": 1.0,
            "version": 2,
            "run": job.run_key,
        }
        assert "old" not in difference.schema("cards").names
        (row,) = difference.to_arrow("seen").read_all().to_pylist()
        assert (row["operation"], row["value"]) == ("appended", [6])
        assert [row.value for row in difference.key_rows("cards", ("a", 1))] == [2.0]
        with pytest.raises(ConfigurationError, match=r"has a state 'x'; their states: 'any', 'c"):
            difference.to_arrow("x")


@pytest.mark.long
@pytest.mark.parametrize("key_type", [str, None])
def test_a_range_that_is_too_large_is_read_in_passes(make_job, feed, key_type):
    job = make_job(*STATES, key_type=key_type)
    job.scripts([(f"k{n}", [("count.update", n)]) for n in range(40)])
    job.scripts([(f"k{n}", [("count.update", n + 1)]) for n in range(0, 40, 2)])
    first, second = feed.after(START)
    with feed.between(first, second) as whole, feed.between(first, second, held_bytes=999) as small:
        assert shown(small, "count") == shown(whole, "count")
        assert len(shown(small, "count")) == 20


def test_a_state_that_is_new(make_job, feed):
    job = make_job(COUNT)
    job.do("a", ("count.update", 1))
    job.descriptors = [COUNT, SEEN]
    job.do("a", ("seen.add", 1))
    first, second = feed.after(START)
    with feed.between(first, second) as difference:
        assert shown(difference, "seen") == [("a", "appended", None, [1], None)]
    with feed.between(second, first, undo=True) as difference:
        assert shown(difference, "seen") == [("a", "cleared", None, None, [1])]


def test_a_type_that_changed_gives_no_rows_by_itself(make_job, feed):
    job = make_job(ValueStateDescriptor("count", int))
    job.scripts([("a", [("count.update", 1)]), ("b", [("count.update", 2)])])
    job.restart()
    job.descriptors = [ValueStateDescriptor("count", float)]
    job.do("b", ("count.update", 2.5))
    first, second = feed.after(START)
    with feed.between(first, second) as difference:
        assert shown(difference, "count") == [("b", "put", None, 2.5, 2.0)]


def test_only_final_versions_unless_asked(make_job, feed, tmp_path):
    job = make_job(*STATES)
    final = open_feed(str(tmp_path), query="query", uid="operator")
    assert final.newest() == START
    assert final.after(START) == []
    job.do("a", ("count.update", 1))
    assert final.newest() == START
    assert feed.newest() == Position(1, job.run_key)
    job.do("a", ("count.update", 2))
    assert final.newest() == Position(1, job.run_key)
    assert [one.version for one in feed.after(START, most=1)] == [1]


@pytest.mark.long
def test_an_abandoned_timeline_stops_the_feed_or_is_undone(make_job, feed):
    job = make_job(*STATES)
    for value in (1, 2, 3):
        job.do("a", ("count.update", value), ("seen.add", value))
    position, old_run = feed.newest(), job.run_key
    job.restart(batch_id=1)
    job.do("b", ("count.update", 7))
    job.do("b", ("count.update", 8))
    with pytest.raises(AbandonedTimelineError, match=f"version 3@{old_run} .* left") as caught:
        feed.after(position)
    assert (caught.value.abandoned, caught.value.newest) == (str(position), f"3@{job.run_key}")
    with pytest.raises(AbandonedTimelineError):
        feed.between(position, feed.newest())
    fork, *later = feed.after(position, undo=True)
    assert [fork, *later] == [
        Position(1, old_run),
        Position(2, job.run_key),
        Position(3, job.run_key),
    ]
    with feed.between(position, fork, undo=True) as difference:
        assert shown(difference, "count") == [("a", "put", None, 1, 3)]
        assert shown(difference, "seen") == [("a", "replaced", None, [1], [1, 2, 3])]
    with feed.between(fork, later[0]) as difference:
        assert shown(difference, "count") == [("b", "put", None, 7, None)]


def test_a_restart_goes_on(make_job, feed):
    job = make_job(*STATES)
    job.do("a", ("count.update", 1))
    first = feed.newest()
    job.restart(parallelism=3)
    job.do("b", ("count.update", 2))
    (second,) = feed.after(first)
    assert second == Position(2, job.run_key)
    with feed.between(first, second) as difference:
        assert shown(difference, "count") == [("b", "put", None, 2, None)]


@pytest.fixture
def sweep(make_job):
    job = make_job(*STATES)

    def sweep():
        janitor = Janitor(
            job.storage, run_key=job.run_key, retention=1, min_age=timedelta(seconds=-100)
        )
        janitor.sweep(job.batch_id)

    return job, sweep


@pytest.mark.long
def test_a_gap_of_the_janitor_says_what_to_do(sweep, feed):
    job, sweep = sweep
    job.do("a", ("count.update", 1))
    first = feed.newest()
    with feed.hold(first):
        for value in range(2, 6):
            job.do("a", ("count.update", value))
        sweep()
        with feed.between(first, feed.newest()) as difference:
            assert shown(difference, "count") == [("a", "put", None, 5, 1)]
        assert [one.version for one in feed.after(first)] == [4, 5]
    sweep()
    for refused in (
        lambda: feed.after(first),
        lambda: feed.hold(first),
        lambda: feed.between(first, feed.newest()),
    ):
        with pytest.raises(VersionGoneError, match=r"the janitor deleted it. Start again with"):
            refused()


def test_a_position_that_was_held_for_longer_than_records_stay(make_job, feed):
    job = make_job(*STATES)
    runs = []
    for value in range(3):
        job.do("a", ("count.update", value))
        runs.append(job.run_key)
        job.restart()
    first, *_ = feed.after(START)
    assert len(feed.after(first)) == 2
    job.storage.delete(one.name for one in job.storage.list("versions") if runs[1] in one.name)
    assert [one.version for one in feed.after(first)] == [3]
    job.storage.delete([f"runs/{runs[1]}"])
    with pytest.raises(VersionGoneError, match=f"of run {runs[1]} between them, and its record"):
        feed.after(first)


def test_nothing_is_pinned_after_an_error(make_job, feed, tmp_path):
    job = make_job(*STATES)
    job.do("a", ("count.update", 1))
    with pytest.raises(VersionGoneError):
        feed.between(feed.newest(), Position(9, job.run_key))
    assert not [*tmp_path.rglob("pins/*")]


def test_positions_as_text():
    assert Position.parse(str(Position(7, "0f"))) == Position(7, "0f")
    assert Position.parse(str(START)) == START
    with pytest.raises(ConfigurationError, match="'7' is not a position"):
        Position.parse("7")


def test_a_key_counts_once_whatever_differs_under_it(make_job, feed):
    job = make_job(*STATES, parallelism=3)
    job.scripts([(key, [("count.update", 1), ("seen.add", 1)]) for key in "abcdef"])
    job.scripts(
        [
            ("a", [("count.update", 2), ("seen.add", 2)]),
            ("b", [("namespace", "n"), ("count.update", 1)]),
            ("c", [("cards.put", "x", 1.0)]),
            ("d", [("count.update", 1)]),
            ("g", [("seen.add", 1)]),
        ]
    )
    first, second = feed.after(START)
    for start, end, keys in (
        (first, second, 4),
        (second, first, 4),
        (START, second, 7),
        (second, second, 0),
    ):
        with feed.between(start, end, undo=True) as difference:
            assert difference.count_keys() == keys


class Alarm(KeyedProcessFunction):
    """Registers a timer, the seconds in its row later."""

    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(seconds=row[1]))

    def on_timer(self, at, ctx):
        pass


def test_timers_are_in_the_difference(make_job, feed):
    job = make_job(clock=ManualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    job.run(Alarm(), [("a", 60)])
    job.run(Alarm(), [("b", 90)])
    first, second = feed.after(START)
    with feed.between(first, second) as difference:
        (one,) = difference.timers()
        assert (one.operation, one.timer.key) == (Operation.PUT, "b")
        assert difference.count_keys() == 1
    job.clock.advance(timedelta(seconds=70))
    job.run(Alarm(), [])
    with feed.between(second, feed.newest()) as difference:
        (one,) = difference.timers()
        assert (one.operation, one.timer.key) == (Operation.REMOVED, "a")


@pytest.mark.parametrize("call", ["after", "hold"])
def test_the_text_of_a_position_is_no_position(make_job, feed, call):
    make_job(*STATES, key_type=str).do("a", ("count.update", 1))
    with pytest.raises(ConfigurationError, match=r"not '1@\w+': Position\.parse makes one"):
        getattr(feed, call)(str(feed.newest()))
