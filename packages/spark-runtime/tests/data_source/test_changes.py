"""The source's stream of changes without Spark: offsets, limits, undo, gaps, pins."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 3.5 has no Python data sources")

from pyspark.sql.datasource import DataSourceStreamReader

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.choosing import opening
from forebay_engine.versions.choosing.pins import list_pins
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_spark_runtime.data_source.held_positions import HeldPositions
from forebay_state_api import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from forebay_state_api.errors import AbandonedTimelineError, ConfigurationError, VersionGoneError
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import START, difference, open_feed
from forebay_state_processor.reading.bounded_passes import held_in_passes
from forebay_testing import KeyedJob, ManualClock
from pyspark_forebay import DefaultSource

LIMITED = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
if LIMITED:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

limited = pytest.mark.skipif(not LIMITED, reason="pyspark 4.2 added admission control")
N = ValueStateDescriptor("n", int)
SEEN = ListStateDescriptor("seen", str)


@pytest.fixture
def job(tmp_path):
    job = KeyedJob(
        *(HeapBackend, open_storage(str(tmp_path))),
        descriptors=[N, SEEN],
        key_type=str,
        parallelism=2,
    )
    for value in range(1, 5):
        job.do("ann", ("n.update", value), ("seen.add", str(value)))
    return job


class Stream:
    """Does with a source what a streaming query of Spark does."""

    def __init__(self, options):
        source = DefaultSource(options)
        self.schema = source.schema()
        self.reader = pickle.loads(pickle.dumps(source)).streamReader(self.schema)
        self.at = json.loads(json.dumps(self.reader.initialOffset()))

    def latest(self, limit=None):
        """Return where a micro-batch ends; an older pyspark asks without a limit."""
        if not LIMITED:
            return self.reader.latestOffset()
        return self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())

    def batch(self, *columns, limit=None):
        """Return the rows of a micro-batch; ``None`` if there is nothing new."""
        end = json.loads(json.dumps(self.latest(limit)))
        if end == self.at:
            return None
        parts = self.reader.partitions(self.at, end)
        sent = pickle.dumps(self.reader)
        rows = []
        for part in parts:
            for batch in pickle.loads(sent).read(pickle.loads(pickle.dumps(part))):
                assert arrow_schema(self.schema).equals(batch.schema)
                rows += [tuple(row[name] for name in columns) for row in batch.to_pylist()]
        self.at = end
        self.reader.commit(end)
        return sorted(rows)


@pytest.fixture
def stream(tmp_path):
    def start(**options):
        given = {"query": "query", "uid": "operator", "state": "n", "changes": "true"}
        return Stream({"path": str(tmp_path)} | given | options)

    return start


@pytest.mark.long
def test_a_batch_takes_all_final_versions(job, stream):
    feed = stream(old="true")
    assert feed.batch("key", "operation", "value", "old", "version") == [("ann", "put", 3, None, 3)]
    assert feed.batch() is None, "the fourth version is not final"
    job.do("ann", ("n.clear",))
    assert feed.batch("value", "old") == [(4, 3)]
    job.do("bob")
    assert feed.batch("operation", "value", "old") == [("removed", None, 4)]


@pytest.mark.long
def test_changes_are_found_within_the_memory_that_is_given(job, stream, monkeypatch):
    job.scripts([(f"user {n}", [("n.update", 1)]) for n in range(40)])
    job.scripts([(f"user {n}", [("n.update", 2)]) for n in range(40)])
    job.do("ann")
    rows = ("key", "operation", "value", "old")
    whole = stream(old="true", startingVersion="5").batch(*rows)
    held = []

    def spied(groups, limit, hold):
        for chosen, found in held_in_passes(groups, limit, hold):
            held.append((limit, sum(map(len, found.values()))))
            yield chosen, found

    monkeypatch.setattr(difference, "held_in_passes", spied)
    assert stream(old="true", startingVersion="5", heldBytes="1k").batch(*rows) == whole
    assert len(whole) == 40
    assert {limit for limit, _ in held} == {1_024}
    assert max(number for _, number in held) < 10


@pytest.fixture
def read_manifests(monkeypatch):
    """The names of the manifests that are read."""
    names = []
    real = opening.read_with_content

    def counted(storage, name):
        names.append(name)
        return real(storage, name)

    monkeypatch.setattr(opening, "read_with_content", counted)
    return names


@pytest.mark.long
def test_a_task_opens_its_own_manifests(tmp_path, stream, read_manifests):
    """And what expires is removed also by tasks whose subtask had no rows and so no time."""
    kept = ValueStateDescriptor("n", int, ttl=StateTtlConfig(timedelta(minutes=5)))
    storage, clock = open_storage(str(tmp_path)), ManualClock()
    job = KeyedJob(
        HeapBackend, storage, descriptors=[kept], key_type=str, parallelism=4, clock=clock
    )
    keys = [str(n) for n in range(20)]
    job.scripts([(key, [("n.update", int(key))]) for key in keys])
    job.scripts([])
    feed = stream()
    assert feed.batch("key", "operation") == sorted((key, "put") for key in keys)
    clock.advance(timedelta(minutes=6))
    job.do("0", ("n.update", 7))
    job.scripts([])
    end = feed.latest()
    parts = feed.reader.partitions(feed.at, end)
    read_manifests.clear()
    rows = []
    for part in parts:
        rows += [row for one in feed.reader.read(part) for row in one.to_pylist()]
        assert len(read_manifests) == 2, "one of each version"
        read_manifests.clear()
    assert len(parts) == 4
    removed = [(key, "removed") for key in keys[1:]]
    assert sorted((row["key"], row["operation"]) for row in rows) == [
        ("0", "put"),
        *sorted(removed),
    ]


@pytest.mark.long
@limited
def test_a_limit_counts_versions(job, stream):
    feed = stream(maxVersionsPerTrigger="2")
    assert feed.reader.getDefaultReadLimit() == ReadMaxFiles(2)
    assert feed.batch("value", "version") == [(2, 2)]
    assert feed.batch("value", "version") == [(3, 3)]
    assert stream(maxVersionsPerTrigger="2").batch("value", limit=ReadAllAvailable()) == [(3,)]


@pytest.mark.long
@limited
def test_a_run_that_ends_does_not_follow_the_job(job, stream):
    feed = stream(maxVersionsPerTrigger="1")
    feed.reader.prepareForTriggerAvailableNow()
    job.do("ann", ("n.update", 7))
    job.do("ann", ("n.update", 8))
    values = []
    while (rows := feed.batch("value")) is not None:
        values += rows
    assert values == [(1,), (2,), (3,)]


@pytest.mark.long
@limited
def test_a_run_that_ends_does_not_follow_a_query_that_goes_back(job, stream):
    feed = stream()
    feed.reader.prepareForTriggerAvailableNow()
    assert feed.batch("value") == [(3,)]
    job.restart(batch_id=1)
    job.do("ann", ("n.update", 20))
    job.do("ann")
    assert feed.batch("value") is None
    with pytest.raises(AbandonedTimelineError):
        stream(startingVersion=f"3@{feed.at['run']}").batch("value")


@pytest.mark.parametrize(("starting", "version"), [("2", 2), ("latest", 3), (None, 0)])
def test_starting_versions(job, stream, starting, version):
    feed = stream(**({} if starting is None else {"startingVersion": starting}))
    assert feed.at["version"] == version
    again = stream(startingVersion=f"{version}@{feed.at['run']}")
    assert again.at == feed.at


def test_elements_of_lists_are_appended(job, stream):
    feed = stream(state="seen", startingVersion="2")
    assert feed.batch("operation", "value") == [("appended", ["3"])]


@pytest.fixture
def left(job, stream):
    """A stream with ``undo`` and one without, at a version of a timeline that the query left."""
    job.do("ann")
    undoing, plain = stream(undo="true"), stream()
    for feed in (undoing, plain):
        assert feed.batch("value", "version") == [(4, 4)]
    job.restart(batch_id=2)
    job.do("ann", ("n.update", 30))
    job.do("ann", ("n.update", 40))
    return undoing, plain


@pytest.mark.long
def test_a_timeline_that_the_query_left(left):
    undoing, plain = left
    with pytest.raises(AbandonedTimelineError, match="on a timeline that the query has left"):
        plain.batch("value")
    assert undoing.batch("value", "version") == [(30, 3)]


@pytest.mark.long
@limited
def test_a_limited_batch_takes_back_what_was_abandoned(left):
    undoing, _ = left
    assert undoing.batch("value", limit=ReadMaxFiles(1)) == [(2,)]
    assert undoing.at["version"] == 2
    assert undoing.batch("value") == [(30,)]


def test_a_gap_is_an_error_that_says_what_to_do(job, stream):
    feed = stream(startingVersion="1")
    job.storage.delete(
        [info.name for info in job.storage.list("versions") if "fffffffffffe/" in info.name]
    )
    with pytest.raises(VersionGoneError, match="is not stored any more"):
        feed.batch("value")


def pinned(job):
    return sorted(pin.version for pin in list_pins(job.storage))


@pytest.mark.long
def test_the_stream_holds_the_position_that_it_goes_on_from(job, stream):
    feed = stream(lease="2d")
    assert not list_pins(job.storage)
    feed.batch("value")
    (pin,) = list_pins(job.storage)
    assert (pin.version, pin.lease.days) == (3, 2)
    job.do("ann", ("n.update", 9))
    feed.batch("value")
    (pin,) = list_pins(job.storage)
    assert pin.version == 4
    feed.reader.stop()
    assert list_pins(job.storage) == [pin], "for a stream that starts again"


def test_a_stream_holds_where_it_begins_and_where_it_starts_again(job, stream):
    feed = stream(startingVersion="2")
    assert pinned(job) == [2], "though no micro-batch was planned yet"
    feed.batch("value")
    job.storage.delete([pin.name for pin in list_pins(job.storage)])
    again = stream()
    again.at = feed.at
    assert again.batch("value") is None
    assert pinned(job) == [3]


@limited
def test_both_ends_of_a_batch_are_held_before_spark_writes_them_down(job, stream):
    feed = stream(startingVersion="1", maxVersionsPerTrigger="1")
    feed.batch("value")
    job.storage.delete([pin.name for pin in list_pins(job.storage)])
    again = stream().reader
    assert again.latestOffset(feed.at, ReadMaxFiles(1))["version"] == 3
    assert pinned(job) == [2, 3]
    again.commit(feed.at)  # Spark does so once it has written down the next end
    assert pinned(job) == [2, 3]


def test_pins_are_renewed_while_nothing_comes(job, tmp_path):
    now = [0.0]
    feed = open_feed(str(tmp_path), query="query", uid="operator")
    held = HeldPositions(timedelta(minutes=20), clock=lambda: now[0])
    for now[0], renewal in ((0, 0), (299, 0), (300, 1), (599, 1), (600, 2)):
        held.hold(feed, feed.newest())
        assert [pin.renewal for pin in list_pins(job.storage)] == [renewal]
    held.keep_only(START)
    assert not list_pins(job.storage)


def test_chosen_key_groups(job, stream):
    group = next(iter(stream().batch("key_group")))[0]
    assert stream(keyGroups=str(group)).batch("value") == [(3,)]
    others = f"0-{group - 1}" if group else "1-7"
    assert stream(keyGroups=others).batch("value") == []


def test_an_older_pyspark_takes_no_limit(job, stream, monkeypatch):
    monkeypatch.delattr(DataSourceStreamReader, "getDefaultReadLimit", raising=False)
    feed = stream()
    assert feed.reader.latestOffset()["version"] == 3
    with pytest.raises(ConfigurationError, match=r"maxVersionsPerTrigger' needs pyspark 4\.2"):
        stream(maxVersionsPerTrigger="1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "1"}, "has no option version"),
        ({"state": "m"}, "state 'm'; their states"),
        ({"maxVersionsPerTrigger": "0"}, "maxVersionsPerTrigger"),
        ({"heldBytes": "0"}, "heldBytes"),
    ],
)
def test_bad_options(job, stream, options, message):
    with pytest.raises(ConfigurationError, match=message):
        stream(**options)


def test_changes_need_a_state_and_a_final_version(tmp_path):
    options = {"path": str(tmp_path), "query": "q", "uid": "u", "changes": "true"}
    with pytest.raises(ConfigurationError, match="changes are read of one state"):
        DefaultSource(options).schema()
    with pytest.raises(ConfigurationError, match="has no final version yet"):
        DefaultSource(options | {"state": "n"}).schema()


def test_reads_and_streams_are_not_mixed_up(job, tmp_path):
    named = {"path": str(tmp_path), "query": "query", "uid": "operator", "state": "n"}
    batch, stream = DefaultSource(named), DefaultSource(named | {"changes": "true"})
    with pytest.raises(ConfigurationError, match=r"spark\.readStream reads changes"):
        batch.streamReader(batch.schema())
    with pytest.raises(ConfigurationError, match=r"is for spark\.readStream"):
        stream.reader(stream.schema())
