"""Steps between the operator and the sink: the right result, or an error that names the step.

Later batches of a union are in ``test_empty.py``.
"""

from __future__ import annotations

import time

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"
USERS = [f"user{n}" for n in range(40)]


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


def counted(stage, **options):
    keyed_df = keyed(stage.source(), "user", uid="counts", parallelism=2, **options)
    return keyed_df.process(Count(), SCHEMA)


def everybody(stage, times=1):
    for _ in range(times):
        stage.put(*[{"user": user} for user in USERS])


def all_counts(times):
    return sorted((user, n) for user in USERS for n in range(1, times + 1))


def recover(stage, batch):
    """Apply the remedy that the error names: go back to before ``batch``."""
    for log in ("commits", "offsets"):
        for path in (stage.checkpoint / log).iterdir():
            name = path.name.lstrip(".").removesuffix(".crc")
            if name.isdecimal() and int(name) >= batch:
                path.unlink()


@pytest.mark.parametrize("action", ["take", pytest.param("show", marks=pytest.mark.slow)])
def test_what_ends_a_batch_early_is_found_at_the_next(stage, action):
    everybody(stage, 2)

    def each(df, batch_id):
        result = keyed(df, "user", uid="counts", parallelism=2).process(Count(), SCHEMA)
        if action == "take":
            result.take(1)
        else:
            result.show(1)

    with pytest.raises(Exception, match=r"limit\(\), take\(\) or show\(\) downstream") as caught:
        stage.each_batch(each)
    assert "version 1 of the state of operator 'counts'" in str(caught.value)
    recover(stage, 0)

    def whole(df, batch_id):
        result = keyed(df, "user", uid="counts", parallelism=2).process(Count(), SCHEMA)
        result.write.mode("append").json(str(stage.folder / "whole"))

    stage.each_batch(whole)
    assert stage.rows(SCHEMA, output=stage.folder / "whole") == all_counts(2)


def test_a_limit_that_cuts_a_subtask_is_found_at_the_next_batch(stage):
    """Spark considers the batch done in the middle of a subtask's output."""
    for _ in range(2):
        stage.put(*[{"user": user, "n": n} for n in range(3) for user in USERS])
    stage.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    state = stage.state

    class Late(Count):
        """Ends its first batch only after the second one has begun; has output before that."""

        def process_element(self, row, ctx):
            deadline = time.monotonic() + 100
            last = row.n == 2 and ctx.batch_id == 0
            while last and len(list(state.glob("*/*/versions/*"))) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield from [*super().process_element(row, ctx)] * 1000

    def each(df, batch_id):
        result = keyed(df, "user", uid="counts", parallelism=2).process(Late(), SCHEMA)
        result.limit(1).write.mode("append").json(str(stage.output))

    try:
        with pytest.raises(Exception, match=r"limit\(\), take\(\) or show\(\) downstream"):
            stage.each_batch(each)
    finally:
        stage.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_limit_above_output_that_is_small_is_right(stage):
    """The version is made before the last output is yielded."""
    everybody(stage, 2)

    def each(df, batch_id):
        result = keyed(df, "user", uid="counts", parallelism=2).process(Count(), SCHEMA)
        result.limit(1).write.mode("append").json(str(stage.output))

    stage.each_batch(each)
    assert sorted(n for _, n in stage.rows(SCHEMA)) == [1, 2]
    assert sorted(stage.manifests()) == [1, 2]


@pytest.mark.slow  # by default: the next test
def test_coalesce_is_refused(stage):
    everybody(stage)
    with pytest.raises(Exception, match=r"A union or coalesce|a coalesce\(\) or a union\(\)"):
        stage.run(counted(stage).coalesce(1))


def test_coalesce_is_refused_where_a_subtask_has_no_rows(stage):
    stage.put({"user": "user1"})
    with pytest.raises(Exception, match=r"A union or coalesce|a coalesce\(\) or a union\(\)"):
        stage.run(counted(stage).coalesce(1))


@pytest.mark.slow  # by default: the self-union, whose second part is refused alike
def test_union_before_the_operator_s_output_is_refused(stage):
    other = stage.folder / "other"
    everybody(stage)
    stage.put({"user": "zoe", "n": 0}, into=other)
    union = stage.source(folder=other).union(counted(stage))
    with pytest.raises(Exception, match="A union or coalesce on the operator's output"):
        stage.run(union)


@pytest.mark.slow  # by default: test_empty.py, with an idle source
def test_union_behind_the_operator_s_output_is_right(stage):
    other = stage.folder / "other"
    everybody(stage)
    stage.put({"user": "zoe", "n": 0}, into=other)
    stage.run(counted(stage).union(stage.source(folder=other)))
    assert stage.rows(SCHEMA) == sorted([*all_counts(1), ("zoe", 0)])


def test_self_union_is_refused_and_behind_repartition_it_is_right(stage):
    """So is any other union; the advice is the same."""
    everybody(stage, 2)
    result = counted(stage)
    with pytest.raises(Exception, match="A union or coalesce on the operator's output"):
        stage.run(result.union(result))
    stage.run(result.repartition(2).union(result.where(F.col("n") < 0).repartition(2)))
    assert stage.rows(SCHEMA) == all_counts(2)


@pytest.mark.slow  # by default: a window in test_empty.py, and a shuffle in test_metrics.py
def test_what_follows_may_filter_and_aggregate(stage):
    everybody(stage, 2)

    def each(df, batch_id):
        result = keyed(df, "user", uid="counts", parallelism=2).process(Count(), SCHEMA)
        totals = result.where("n > 1").groupBy("n").agg(F.count("*").alias("users"))
        totals.write.mode("append").json(str(stage.output))

    stage.each_batch(each)
    assert stage.rows("n long, users long") == [(2, 40)]


@pytest.mark.usefixtures("one_partition")
def test_a_watermark_counts_behind_the_operator_alone(stage):
    for minute in (0, 30):
        stage.put({"user": "ann", "at": f"2024-05-01T10:{minute:02}:00Z"})
    schema = "user string, at timestamp"

    def windows(*, before, behind):
        clicks = stage.source(schema)
        clicks = clicks.withWatermark("at", "0 seconds") if before else clicks
        same = keyed(clicks, "user", uid="same", parallelism=2).process(
            lambda row, ctx: [row], schema
        )
        same = same.withWatermark("at", "0 seconds") if behind else same
        return same.groupBy(F.window("at", "5 minutes")).count().select("count")

    def run(name, **places):
        folder = stage.folder / name
        stage.run(windows(**places), checkpoint=folder / "checkpoint", output=folder / "output")
        return stage.rows("count long", output=folder / "output")

    assert run("behind", before=False, behind=True) == [(1,)]
    with pytest.raises(AnalysisException, match="without watermark"):
        run("before", before=True, behind=False)
    with pytest.raises(StreamingQueryException, match="Redefining watermark is disallowed"):
        run("both", before=True, behind=True)
