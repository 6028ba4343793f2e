"""Clocks in the names of manifests: exact, next to any figures, and not needed in older names."""

from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.timers.event_times import EventTimeRules
from forebay_engine.timers.starting_clocks import times_of
from forebay_engine.timers.watermark import ALWAYS, FIRST_US, LAST_US, NEVER, TimerClocks
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import COUNTS, PHASES, Figures
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.manifest import put_manifest, read_manifest
from forebay_engine.versions.format.markers import Made, list_version
from forebay_engine.versions.format.named_clocks import MOST_CHARACTERS, clocks_of, clocks_text
from forebay_state_api.contract.object_storage import ObjectInfo
from forebay_state_api.keys import KeyGroupRange
from forebay_testing.storage import CountingStorage

LARGEST = Coordinates(
    version=5,
    max_parallelism=32_768,
    parallelism=32_768,
    subtask=32_767,
    range=KeyGroupRange(32_767, 32_767),
    epoch=10**8,
    run_key="0123456789abcdef",
    attempt_id=10**9,
    random_id="ab" * 12,
)
MICROSECONDS = st.integers(ALWAYS, NEVER)


TIMES = st.just(ALWAYS) | st.integers(FIRST_US, LAST_US)
SILENCES = st.integers(0, 10**14)


@st.composite
def silent(draw):
    sides = draw(st.integers(1, 2))
    of_sides = {"min_size": sides, "max_size": sides}
    active = draw(st.lists(st.booleans(), **of_sides))
    return TimerClocks(
        now_us=draw(TIMES.filter(lambda us: us != ALWAYS)),
        watermark_us=draw(TIMES),
        seen_us=draw(st.lists(TIMES, **of_sides)),
        active=active,
        marks_us=draw(st.lists(TIMES, **of_sides)),
        silent_us=draw(st.lists(SILENCES, **of_sides)),
        before_us=draw(TIMES),
        only_ahead=[not one and draw(st.booleans()) for one in active],
    )


@given(silent())
def test_a_name_has_the_marks_and_the_silence_of_inputs(part):
    text = clocks_text(part.stored())
    if not text:
        return  # then the manifest is read
    assert len(text) <= MOST_CHARACTERS
    name = layout.manifest_name(LARGEST, 1_700_000_000_123, 4_711, Figures(), text)
    assert len(name.rpartition("/")[2]) <= 240
    found = TimerClocks.loaded(clocks_of(text))
    assert (found.now_us, found.watermark_us) == (part.now_us, part.watermark_us)
    assert (found.marks_us, found.silent_us) == (part.marks_us, part.silent_us)
    assert found.before_us == part.before_us
    assert found.only_ahead[: len(part.only_ahead)] == (
        part.only_ahead if any(part.only_ahead) else []
    )


def test_times_of_our_days_have_room_for_figures():
    now_us = 1_800_000_000_123_456
    part = TimerClocks(
        now_us=now_us,
        watermark_us=now_us - 300_000_000,
        seen_us=[now_us - 1_000_000, now_us - 2_000_000],
        active=[True, True],
        marks_us=[now_us - 10_000_000] * 2,
        silent_us=[3_600_000_000] * 2,
        before_us=now_us - 10_000_000,
        only_ahead=[False, True],
    )
    assert len(clocks_text(part.stored())) <= 100


@st.composite
def clocks(draw, most=2):
    sides = draw(st.integers(0, most))
    return TimerClocks(
        now_us=draw(MICROSECONDS),
        watermark_us=draw(MICROSECONDS),
        seen_us=draw(st.lists(MICROSECONDS, min_size=sides, max_size=sides)),
        active=draw(st.lists(st.booleans(), min_size=sides, max_size=sides)),
    )


@given(clocks(), st.booleans())
def test_a_name_has_what_other_subtasks_need(part, busy):
    every = dict.fromkeys(COUNTS, 10**15), dict.fromkeys(PHASES, 10**9)
    figures = Figures(*every) if busy else Figures()
    text = clocks_text(part.stored())
    assert len(text) <= 60
    name = layout.manifest_name(LARGEST, 1_700_000_000_123, 4_711, figures, text)
    assert len(name.rpartition("/")[2]) <= 240
    made = Made.parse(ObjectInfo(name=name, size=4_711, modified=datetime(2026, 1, 1, tzinfo=UTC)))
    assert made is not None
    assert made.by == LARGEST
    found = TimerClocks.loaded(made.clocks)
    assert (found.now_us, found.watermark_us) == (part.now_us, part.watermark_us)
    seen = [us for us, active in zip(part.seen_us, part.active, strict=True) if active]
    assert [us for us, a in zip(found.seen_us, found.active, strict=True) if a] == seen
    assert set(made.figures.counts) <= set(figures.counts)
    if busy:
        assert made.figures.phase_ms


def test_names_without_clocks_have_none():
    assert clocks_text({}) == ""
    three = TimerClocks(seen_us=[1, 2, 3], active=[True] * 3)
    assert clocks_text(three.stored()) == ""
    assert clocks_of("") is None
    assert clocks_of("RI2sRO2sSB1h4w") is None


@pytest.mark.parametrize("older", [0, 1, 4])
def test_older_names_cost_a_read_each_and_give_the_same_watermark(query, monkeypatch, older):
    """Of a version in the making while a new release is rolled out, some names have no clocks."""
    run = query.run(4)
    for subtask in range(4):
        with monkeypatch.context() as patch:
            if subtask < older:
                patch.setattr("forebay_engine.versions.format.manifest.clocks_text", lambda _: "")
            times = TimerClocks(now_us=7, seen_us=[100 + subtask], active=[True]).stored()
            task = run.begin(0, subtask)
            task.version.commit(task.write(), descriptions={}, times=times)
    making = run.begin(1, 3).version
    counting = CountingStorage(query.storage)
    making._operator.storage = counting
    assert times_of(making, now_us=9, rules=EventTimeRules(lateness_us=[5])).watermark_us == 95
    assert counting.counts == {"list": 1} | ({"get": min(older, 3)} if older else {})


def test_a_manifest_is_read_under_a_name_with_clocks(query):
    run = query.run(1)
    run.batch(0)
    (made,) = list_version(query.storage, 1).manifests
    manifest = read_manifest(query.storage, made.name)
    stored = TimerClocks(now_us=5, watermark_us=-7).stored()
    name, _ = put_manifest(query.storage, attrs.evolve(manifest, times=stored))
    assert read_manifest(query.storage, name).times == stored
