"""Restarts from the checkpoint: other parallelism, replayed batches, retention, the janitor.

A TTL switch is tested by the conformance kit and, on Spark, where a savepoint is restored
(``test_savepoints.py``); a restart of the same query that switches is slow.
"""

from __future__ import annotations

import datetime
import json
import logging
import shutil
import threading
import time

import pytest
from pyspark.errors import PythonException, StreamingQueryException

from forebay_engine.versions.format.layout import version_folder
from forebay_spark_runtime import keyed
from forebay_spark_runtime.driver import stored_operators
from forebay_state_api import (
    ConfigurationError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.storage.opening import open_storage

from .functions import Count, CountBoth

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


class Kinds(KeyedProcessFunction):
    """Counts the rows of a key in five kinds of state, which must agree."""

    def open(self, context):
        self.value = context.get_state(ValueStateDescriptor("value", int, default=0))
        self.list = context.get_list_state(ListStateDescriptor("list", int))
        self.map = context.get_map_state(MapStateDescriptor("map", str, int))
        self.latest = context.get_sorted_map_state(SortedMapStateDescriptor("latest", int, int))
        self.sum = context.get_reducing_state(
            ReducingStateDescriptor("sum", lambda a, b: a + b, int)
        )

    async def process_element(self, row, ctx):
        n = await self.value.async_value() + 1
        await self.value.async_update(n)
        await self.list.async_add(n)
        await self.map.async_put(f"entry {n}", n)
        await self.latest.async_put(n, n)
        await self.latest.async_remove_range(stop=n - 2)
        await self.sum.async_add(1)
        kept = [one async for one in await self.list.async_get()]
        entries = [one async for one in await self.map.async_values()]
        assert kept == sorted(entries) == list(range(1, n + 1))
        latest = [one async for one, _ in await self.latest.async_range()]
        assert latest == list(range(max(1, n - 2), n + 1))
        assert await self.latest.async_last(stop=n) == (None if n == 1 else (n - 1, n - 1))
        assert await self.sum.async_get() == n
        yield row.user, n


class Everlasting(Count):
    """Counts the rows of a key, and continues where `Daily` was."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0, switch_ttl=True))


class Daily(Count):
    """Counts the rows of a day."""

    def open(self, context):
        ttl = StateTtlConfig(datetime.timedelta(days=1))
        self.n = context.get_state(ValueStateDescriptor("n", int, ttl=ttl, switch_ttl=True))

    def process_element(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        yield row.user, self.n.value()


def counted(stage, function=None, **options):
    keyed_df = keyed(stage.source(), "user", uid="counts", **options)
    return keyed_df.process(function or Count(), SCHEMA)


USERS = [f"user{n}" for n in range(40)]


def everybody(stage):
    stage.put(*[{"user": user} for user in USERS])


def all_counts(times):
    return sorted((user, n) for user in USERS for n in range(1, times + 1))


def test_rescale_to_more_and_to_fewer(stage):
    """Without a number, parallelism is Spark's; another ``max_parallelism`` is refused."""
    for turn, options in enumerate(({}, {"parallelism": 3})):
        everybody(stage)
        stage.run(counted(stage, Kinds(), **options))
        assert stage.rows(SCHEMA) == all_counts(turn + 1)
    parallelism = {v: names[0].split("-")[2] for v, names in stage.manifests().items()}
    assert parallelism == {1: "2", 2: "3"}
    everybody(stage)
    with pytest.raises(Exception, match="pass max_parallelism=128 instead of 64"):
        stage.run(counted(stage, Kinds(), max_parallelism=64))
    stage.run(counted(stage, Kinds(), parallelism=1, max_parallelism=128))
    assert stage.rows(SCHEMA) == all_counts(3)
    assert len(stage.manifests()[3]) == 1


def test_a_ttl_is_switched_on_and_off_over_stored_state(stage):
    for turn, function in enumerate((Count(), Daily())):
        everybody(stage)
        stage.run(counted(stage, function, parallelism=2 + turn))
        assert stage.rows(SCHEMA) == all_counts(turn + 1)
    everybody(stage)
    with pytest.raises(StreamingQueryException, match="declare it with switch_ttl=True"):
        stage.run(counted(stage))
    stage.run(counted(stage, Everlasting()))
    assert stage.rows(SCHEMA) == all_counts(3)


def forget_batch(stage, batch):
    """Take the checkpoint back to before ``batch`` was committed, its output with it."""
    for log in ("commits", "offsets"):
        for path in (stage.checkpoint / log).iterdir():
            name = path.name.lstrip(".").removesuffix(".crc")
            if name.isdecimal() and int(name) >= batch + (log == "offsets"):
                path.unlink()
    for path in (stage.output / "_spark_metadata").iterdir():
        name = path.name.lstrip(".").removesuffix(".crc")
        if name.isdecimal() and int(name) >= batch:
            path.unlink()


@pytest.mark.slow  # by default: one parallelism where expiry is tested, another with retention
@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_batch_that_was_not_committed_is_run_again_from_the_same_version(stage, parallelism):
    for _ in range(3):
        everybody(stage)
    stage.run(counted(stage, parallelism=2))
    forget_batch(stage, 2)
    stage.run(counted(stage, parallelism=parallelism))
    assert stage.rows(SCHEMA) == sorted(stage.rows_by_spark(SCHEMA)) == all_counts(3)
    assert len(stage.manifests()[3]) == 2 + parallelism


@pytest.mark.slow  # by default: as far back with retention, and versions/test_schedules.py
def test_a_checkpoint_that_goes_back_further(stage):
    """Batches 1 and 2 run again on versions that an older run has made (schedule 4)."""
    for _ in range(3):
        everybody(stage)
    stage.run(counted(stage, parallelism=2))
    forget_batch(stage, 1)
    stage.run(counted(stage, parallelism=3))
    assert stage.rows(SCHEMA) == sorted(stage.rows_by_spark(SCHEMA)) == all_counts(3)
    assert {v: len(names) for v, names in stage.manifests().items()} == {1: 2, 2: 5, 3: 5}
    everybody(stage)
    stage.run(counted(stage, parallelism=1))
    assert stage.rows(SCHEMA) == all_counts(4)


class Expiring(KeyedProcessFunction):
    """Counts rows; a count expires after the given TTL."""

    def __init__(self, ttl):
        self.ttl = StateTtlConfig(ttl)

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, ttl=self.ttl))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield row.user, n


def batch_time_ms(stage, batch):
    """Return the time at which Spark planned a batch, from its log."""
    metadata = (stage.checkpoint / "offsets" / str(batch)).read_text().splitlines()[1]
    return json.loads(metadata)["batchTimestampMs"]


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_a_replay_expires_what_the_batch_expired(stage, backend):
    """The batch's time is Spark's, the same when the batch is run again later (schedule 12)."""
    stage.spark.conf.set("spark.forebay.state.backend", backend)
    millisecond = datetime.timedelta(milliseconds=1)
    everybody(stage)
    everybody(stage)
    stage.run(counted(stage, Expiring(datetime.timedelta(hours=1))))
    first = stage.rows(SCHEMA)
    assert first == all_counts(2)
    just_alive = (batch_time_ms(stage, 1) - batch_time_ms(stage, 0) + 1) * millisecond
    forget_batch(stage, 1)
    stage.run(counted(stage, Expiring(just_alive)))
    assert stage.rows(SCHEMA) == first, "at any later time the first counts have expired"
    everybody(stage)
    stage.run(counted(stage, Expiring(millisecond)))
    assert stage.rows(SCHEMA) == sorted(first + [(user, 1) for user in USERS])


def test_retention_keeps_the_last_versions_and_the_janitor_clears_the_rest(stage):
    """A pass every 2 versions, on a thread of a worker, while the query continues."""
    stage.spark.conf.set("spark.forebay.retention", "2")
    stage.spark.conf.set("spark.forebay.janitor.min-age", "0s")
    for _ in range(9):
        everybody(stage)
    stage.run(counted(stage, parallelism=2))
    assert stage.rows(SCHEMA) == all_counts(9)
    # The last pass may still be under way: at version 8 its floor is 6.
    deadline = time.monotonic() + 100
    while min(stage.manifests()) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    kept = sorted(stage.manifests())
    assert kept[-3:] == [7, 8, 9]
    assert 4 <= kept[0] <= 6
    data = open_storage(str(stage.operators()["counts"])).list("data")
    assert len(list(data)) <= 2 * (len(kept) + 4)
    # Going back within the retention still works, from the kept versions; further back is said.
    forget_batch(stage, 7)
    stage.run(counted(stage, parallelism=3))
    assert stage.rows(SCHEMA) == sorted(stage.rows_by_spark(SCHEMA)) == all_counts(9)
    forget_batch(stage, 1)
    with pytest.raises(Exception, match=r"the oldest stored version is \d"):
        stage.run(counted(stage))


@pytest.mark.slow  # by default: versions/test_schedules.py, and a mistyped one in test_bad_input.py
def test_a_state_directory_that_is_older_than_the_checkpoint_or_gone(stage):
    for _ in range(2):
        everybody(stage)
    stage.run(counted(stage))
    (newest,) = stage.state.glob(f"*/*/{version_folder(2)}")
    lost = newest.rename(stage.state.parent / "lost")
    everybody(stage)
    with pytest.raises(Exception, match=r"version 2 of the state of operator 'counts' .* missing"):
        stage.run(counted(stage))
    lost.rename(newest)
    stage.run(counted(stage))
    assert stage.rows(SCHEMA) == all_counts(3)
    everybody(stage)
    stage.state.rename(lost)  # at once: final versions may be marked still
    with pytest.raises(Exception, match="or the state was deleted"):
        stage.run(counted(stage))


def test_a_new_operator_in_an_old_query(stage):
    """An operator that is added, or renamed, begins empty only with ``new_state=True``."""
    everybody(stage)
    stage.run(counted(stage))
    everybody(stage)

    def with_second(**options):
        first = counted(stage)
        return keyed(first, "user", uid="second", **options).process(Count(), SCHEMA)

    says = r"no state of operator 'second' is stored in .* pass new_state=True for its first"
    with pytest.raises(Exception, match=says):
        stage.run(with_second())
    stage.run(with_second(new_state=True))
    everybody(stage)
    stage.run(with_second())
    assert stage.rows(SCHEMA) == sorted([(u, 1) for u in USERS] + all_counts(2))


def logged(caplog):
    logger = "forebay_spark_runtime.driver.stored_operators"
    done = threading.Event()
    stored_operators._pool.do(done.set)
    assert done.wait(100)
    messages = [one.getMessage() for one in caplog.records if one.name == logger]
    caplog.clear()
    return messages


def test_operators_out_of_the_plan_and_a_lost_checkpoint_are_said(stage, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "forebay_spark_runtime.driver.stored_operators")
    warned = []
    monkeypatch.setattr("warnings.warn", lambda message, *_, **__: warned.append(str(message)))

    def start(*uids):
        stage.put({"user": "ann"})
        df = stage.source()
        for uid in uids:
            df = keyed(df, "user", uid=uid, state_dir=stage.state).process(Count(), SCHEMA)
        return str(stage.run(df).id)

    lost = start("counts", "a:b é", "more")
    assert logged(caplog) == []
    start("more")
    where = f"state kept in {stage.state}"
    assert logged(caplog) == [
        f"query {lost}: operators that are not in its plan, with {where}: a:b é, counts"
    ]
    assert len(stage.operators()) == 3
    assert warned == []
    shutil.rmtree(stage.checkpoint)
    shutil.rmtree(stage.output)  # which has the batches that it took
    new = start("more")
    assert lost != new
    (message,) = logged(caplog)
    assert f"query {new} has a new checkpoint" in message
    assert f"holds state of that uid of '{lost}'" in message
    assert warned == [message]
    start("more")
    assert logged(caplog) == []


def test_state_goes_on_only_under_its_own_key_columns(stage):
    """Shows what `keyed` passes on; ``test_key_columns.py`` has the cases."""
    noon = "TIMESTAMP'2024-05-01 12:00:00'"
    df = stage.spark.sql(f"SELECT 'a' AS user, 'a' AS account, 1 AS day, {noon} AS at")
    df = df.withColumn("wall", df["at"].cast("timestamp_ntz"))

    def run(batch, *columns, **how):
        options = {"uid": "u", "query": "q", "batch_id": batch, "state_dir": str(stage.state)}
        one = keyed(df, *columns, parallelism=1, **options, **how)
        return [row.n for row in one.process(Count(), SCHEMA).collect()]

    def run_both(batch, first, second):
        options = {"uid": "both", "query": "q", "batch_id": batch, "state_dir": str(stage.state)}
        sides = [keyed(df, one, parallelism=1, **options) for one in (first, second)]
        return [row.n for row in sides[0].connect(sides[1]).process(CountBoth(), SCHEMA).collect()]

    assert run(0, "user", "at") == [1]
    for columns, says in (
        (["account", "at"], "the key column 'user', and that column is now 'account': a value of"),
        (["user", "wall"], r"\(user string, at timestamp\), and they are now .* timestamp_ntz\)"),
    ):
        with pytest.raises(PythonException, match=f"StateMigrationError: operator 'u': .*{says}"):
            run(1, *columns)
    assert run(1, "account", "at", key_alias={"account": "user"}) == [2]
    assert run(2, "account", "at") == [3]
    with pytest.raises(ConfigurationError, match="key_alias= names 'day', which is no key column"):
        run(3, "account", key_alias={"day": "user"})

    assert run_both(0, "user", "account") == [1, 2]
    with pytest.raises(PythonException, match="the key column of the second input 'account'"):
        run_both(1, "user", "user")
    assert run_both(1, "user", "account") == [3, 4]
