"""Figures of keyed operators in progress events and in Spark's metrics system."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from forebay_engine.versions import OperatorStorage, operator_folder
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.format.manifest_metrics import flat
from forebay_spark_runtime import keyed, ordered_wait
from forebay_spark_runtime.driver.spark_metrics import spark_metrics
from forebay_spark_runtime.metrics import MetricsListener, operators_of
from forebay_state_api.keys import key_group_of
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import key_groups_of

from .functions import Count

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"
LISTENER = "forebay_spark_runtime.driver.query_listener"
PAUSE_S = 4.0
RETRIED = Path(__file__).parents[1] / "jobs" / "retried.py"
STRICT = StructType(
    [StructField("user", StringType(), nullable=False), StructField("n", LongType())]
)


def counts(df, uid="counts"):
    return keyed(df, "user", uid=uid, parallelism=2)


def put(stage, batches):
    for _ in range(batches):
        stage.put({"user": "ann"}, {"user": "bob"}, {"user": "ann"})


def finished(stage, df, **options):
    query = stage.start(df, **options)
    query.processAllAvailable()
    query.stop()
    return query


def operators(query):
    """Return the figures of all micro-batches that had rows, batch by batch."""
    found = [operators_of(progress) for progress in query.recentProgress]
    return [each for each in found if each and each[0].figures.get("rows_in")]


def eventually(read, holds):
    """Return what ``read`` returns once it ``holds``: listeners run after a batch."""
    until = time.monotonic() + 100
    while not holds(found := read()):
        assert time.monotonic() < until, found
        time.sleep(0.05)
    return found


def gauges(spark):
    """Return the numbers of the accumulators that Spark's metrics system shows."""
    shown = spark_metrics(spark.sparkContext)
    return {name: one.value() for name, one in [*shown._accumulators.items()]}


def test_each_batch_has_the_figures_of_its_operators(stage, caplog):
    caplog.set_level(logging.INFO, LISTENER)
    put(stage, 2)
    first = counts(stage.source()).process(Count(), STRICT)
    second = keyed(first, "user", uid="again", parallelism=2).process(Count(), SCHEMA)
    assert first.schema == STRICT, "the hidden column is gone, and nothing else has changed"
    query = finished(stage, second)
    found = operators(query)
    assert [[one.uid for one in batch] for batch in found] == [["again", "counts"]] * 2
    for batch_id, batch in enumerate(found):
        for one in batch:
            figures = one.figures
            assert (figures["rows_in"], figures["rows_out"]) == (3, 3)
            assert (one.batch_id, one.subtasks) == (batch_id, 2)
            assert figures["keys"] == figures["keys_touched"] == 2
            assert figures["keys_new"] == (2 if batch_id == 0 else 0)
            assert "runs_max" not in figures, "heap has no runs"
    assert stage.rows(SCHEMA) == [("ann", n) for n in (1, 2, 3, 4)] + [("bob", n) for n in (1, 2)]
    wanted = [str(one) for batch in found for one in batch]
    eventually(lambda: logged(caplog), lambda lines: set(wanted) <= set(lines))
    assert wanted[2].startswith("operator again of query ")
    assert ", commits 2, group_rows_max 2, keys 2, keys_touched 2, phase_seconds_" in wanted[2]


def test_figures_can_be_left_out_of_progress_events(stage, spark):
    put(stage, 1)
    spark.conf.set("spark.forebay.progress-figures", "false")
    try:
        job = counts(stage.source()).process(Count(), SCHEMA)
    finally:
        spark.conf.unset("spark.forebay.progress-figures")
    query = finished(stage, job)
    (progress,) = [one for one in query.recentProgress if one["numInputRows"]]
    (name,) = progress["observedMetrics"]
    assert name.startswith("forebay:counts:"), "versions are still marked as final"
    assert operators_of(progress) == []
    assert stage.rows(SCHEMA) == [("ann", 1), ("ann", 2), ("bob", 1)]


def logged(caplog):
    """Return the lines of the query listener."""
    return [one.getMessage() for one in [*caplog.records] if one.name == LISTENER]


def test_phases_are_the_time_of_the_tasks_and_little_is_left_over(stage):
    put(stage, 15)
    query = finished(stage, counts(stage.source()).process(Count(), SCHEMA))
    left_over = []
    for (one,) in operators(query)[1:]:
        seconds = {phase.value: s for phase, s in one.phase_seconds.items()}
        assert {"input", "open", "function", "commit_files", "commit_manifest"} <= set(seconds)
        left_over.append(seconds["rest"] / sum(seconds.values()))
    # A machine that is busy stops a task anywhere, also between two phases: the best one counts.
    assert min(left_over) <= 0.05, left_over


class Pause(Count):
    """Takes its time with each row."""

    def process_element(self, row, ctx):
        threading.Event().wait(PAUSE_S)
        yield from super().process_element(row, ctx)


def run_times_s(spark, query):
    """Return the time of each task of a query, as Spark measures it, the longest first."""
    store = spark._jsc.sc().statusStore()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(query.runId)]
    found = []
    for stage in {stage for job in jobs for stage in job.stageIds}:
        tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), 1_000)
        metrics = [tasks.apply(at).taskMetrics() for at in range(tasks.size())]
        found += [one.get().executorRunTime() / 1_000 for one in metrics if one.isDefined()]
    return sorted(found, reverse=True)


@pytest.mark.slow
def test_the_phases_are_the_time_that_spark_measures(stage, spark):
    for _ in range(3):
        stage.put({"user": "ann"})
    one_subtask = keyed(stage.source(), "user", uid="counts", parallelism=1)
    query = finished(stage, one_subtask.process(Pause(), SCHEMA))
    ours = [sum(one.phase_seconds.values()) for (one,) in operators(query)]
    theirs = run_times_s(spark, query)[:3]
    assert min(ours) >= PAUSE_S
    # The first task may start its worker, and the machine may be busy: the best one counts.
    best = max(mine / its for mine, its in zip(sorted(ours), sorted(theirs), strict=True))
    assert 0.95 <= best <= 1.02, (ours, theirs)


def test_a_listener_that_hangs_and_fails_holds_nothing_up(stage, spark, caplog):
    put(stage, 2)
    hangs, goes_on = threading.Event(), threading.Event()
    seen = []

    def on_batch(batch):
        hangs.set()
        assert goes_on.wait(100)
        seen.append(batch)
        raise ValueError("boom")

    listener = MetricsListener(on_batch)
    spark.streams.addListener(listener)
    try:
        query = finished(stage, counts(stage.source()).process(Count(), SCHEMA))
        assert hangs.wait(100)
        assert len(operators(query)) == 2, "all batches are done, and the listener hangs"
        assert len(stage.rows(SCHEMA)) == 6
        goes_on.set()
        eventually(lambda: [*seen], lambda found: len(found) >= 2)
    finally:
        goes_on.set()
        spark.streams.removeListener(listener)
    assert [one.figures["rows_in"] for one in seen if one.figures["rows_in"]] == [3, 3]
    assert [record.message for record in caplog.records].count("a metrics listener failed") == 1


def test_the_manifest_has_the_same_figures_but_for_what_comes_after_it(stage):
    put(stage, 1)
    query = finished(stage, counts(stage.source()).process(Count(), SCHEMA))
    ((one,),) = operators(query)
    storage = OperatorStorage(
        open_storage(str(stage.state)), operator_folder(one.query_id, "counts")
    )
    with open_version(storage, uid="counts", version=1) as reader:
        manifests = [flat(manifest.metrics) for manifest in reader.manifests]
        groups = key_groups_of(reader.manifests)
    for key in ("rows_in", "rows_out", "keys_new", "state_bytes", "written_bytes", "commits"):
        assert sum(figures[key] for figures in manifests) == one.figures[key], key
    for figures in manifests:
        assert figures["storage_requests_list"] > 0
        assert "phase_seconds_commit_install" not in figures
    most = len(groups.bytes)
    assert groups.hottest(9) == {key_group_of("ann", most): 2, key_group_of("bob", most): 1}


def test_two_actions_in_foreach_batch_count_each_subtask_once(stage):
    put(stage, 2)
    collected = []

    def twice(df, batch_id):
        # The second action has a plan of its own, which Spark adapts while it runs.
        collected.append((df.count(), len(df.repartition(3, "user").collect())))

    output = counts(stage.source()).process(Count(), SCHEMA).writeStream.foreachBatch(twice)
    query = output.option("checkpointLocation", str(stage.checkpoint)).start()
    query.processAllAvailable()
    query.stop()
    assert collected == [(3, 3)] * 2
    for (one,) in operators(query):
        assert (one.subtasks, one.figures["rows_in"]) == (2, 3)


# By default, a plan that is adapted is the second one of the test above.
@pytest.fixture(
    params=[pytest.param("true", marks=pytest.mark.slow), "false"],
    ids=["adaptive", "not adaptive"],
)
def adaptive(spark, request):
    """Whether Spark adapts plans while they run."""
    name = "spark.sql.adaptive.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.set(name, before)


@pytest.mark.usefixtures("adaptive")
def test_an_operator_below_a_shuffle(stage):
    put(stage, 1)
    shuffled = counts(stage.source()).process(Count(), SCHEMA).repartition(3, "user")
    ((one,),) = operators(finished(stage, shuffled))
    assert (one.subtasks, one.figures["rows_in"]) == (2, 3)


def test_spark_s_metrics_system_goes_on_over_a_restart(stage, spark):
    job = counts(stage.source(), "restarted").process(Count(), SCHEMA)
    name = "forebay_keyed_rows_in_total..query..clicks..uid..restarted"
    for rows in (3, 6):
        put(stage, 1)
        query = job.writeStream.queryName("clicks").format("noop")
        query = query.option("checkpointLocation", str(stage.folder / "c")).start()
        query.processAllAvailable()
        query.stop()
        found = eventually(lambda: gauges(spark), lambda shown, rows=rows: shown.get(name) == rows)
    assert found["forebay_keyed_keys..query..clicks..uid..restarted"] == 2
    phase = "forebay_keyed_phase_seconds_total..query..clicks..uid..restarted..phase..function"
    assert found[phase] > 0


def test_an_ordered_wait_is_in_spark_s_metrics_system(stage, spark):
    put(stage, 2)
    waited = ordered_wait(stage.source(), answer, "answer string", name="ask", columns=["user"])
    query = waited.writeStream.queryName("asking").format("noop").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(stage.checkpoint)).start()
    query.awaitTermination()
    ask = "..query..asking..uid..ask"
    last = f"forebay_wait_try_seconds_bucket{ask}..le..inf"
    rows, tries = f"forebay_wait_rows_total{ask}", f"forebay_wait_tries_total{ask}"
    found = eventually(
        lambda: gauges(spark), lambda shown: last in shown and shown[rows] == shown[tries] == 6
    )
    assert found[f"forebay_wait_in_flight_max{ask}"] >= 1


async def answer(row, client):
    return f"hello {row.user}"


@pytest.mark.slow
def test_tasks_and_stages_that_run_again_count_once(tmp_path):
    done = subprocess.run(
        [sys.executable, str(RETRIED), str(tmp_path)],
        env={**os.environ},
        capture_output=True,
        check=True,
        timeout=110,
    )
    found = json.loads(done.stdout)
    assert found["lost"], "the output of a stage was lost"
    # Batch and subtask of each attempt: failed in the first batch, lost in the second.
    assert [found["ran"].count(f"0-{subtask}") for subtask in (0, 1)] == [2, 2]
    assert sum(one.startswith("1-") for one in found["ran"]) > 2
    for batch in ("0", "1"):
        figures = found["figures"][batch]
        assert (figures["commits"], figures["rows_in"], figures["rows_out"]) == (2, 40, 40)
        assert figures["keys"] == 40
