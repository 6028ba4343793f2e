"""Kept answers on Spark: micro-batches that are repeated, planned again, shuffled and rescaled."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter

import pytest

from forebay_spark_runtime import keyed, ordered_wait
from forebay_state_api import KeyedProcessFunction

pytestmark = pytest.mark.spark

ANSWERED = "id long, answer string"
ROWS = 40


@pytest.fixture
def calls(stage):
    """The folder in which each call leaves a file, with its row."""
    folder = stage.folder / "calls"
    folder.mkdir()
    return folder


def asked(calls):
    """Return row → number of its calls."""
    return Counter(int(path.name.split("-")[0]) for path in calls.iterdir())


def by_key(df, calls, **options):
    class Asks(KeyedProcessFunction):
        async def process_element(self, row, ctx):
            yield row.id, await ctx.kept_call("ask", self.ask, row.id)

        async def ask(self, number):
            name = f"{number}-{uuid.uuid4()}"
            (calls / name).touch()
            return name

    options = {"parallelism": 2, **options}
    return keyed(df, "id", uid="asks", **options).process(Asks(), ANSWERED)


def in_order(df, calls, *, parallelism=2, **options):
    async def ask(row, client):
        name = f"{row.id}-{uuid.uuid4()}"
        (calls / name).touch()
        return name

    # A shuffle, whose order of rows differs in each attempt.
    shuffled = df.repartition(parallelism)
    options = {"columns": "id", "keep_answers": "ask", "uid": "asks", **options}
    return ordered_wait(shuffled, ask, "answer string", **options)


both = pytest.mark.parametrize("operator", [by_key, in_order])


class Sink:
    """A ``foreachBatch`` function that evaluates the answers, and fails ``fails`` times."""

    def __init__(self, operator, calls, *, fails=0, actions=1):
        self.operator, self.calls = operator, calls
        self.fails, self.actions = fails, actions
        self.parallelism = 2
        self.rows = []
        """The rows of each action."""

    def __call__(self, df, batch_id):
        answered = self.operator(df, self.calls, parallelism=self.parallelism)
        self.rows += [sorted(map(tuple, answered.collect())) for _ in range(self.actions)]
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the sink failed")


@both
def test_a_sink_that_fails_after_all_tasks_repeats_no_call(stage, calls, operator):
    stage.put_ids(1, ROWS)
    source = stage.source("id long")
    sink = Sink(operator, calls, fails=1)
    with pytest.raises(Exception, match="the sink failed"):
        stage.each_batch(sink, source)
    sink.parallelism = 3
    stage.each_batch(sink, source)
    first, again = sink.rows
    assert first == again
    assert asked(calls) == Counter(range(ROWS))


@both
def test_two_actions_in_one_batch_make_the_calls_once(stage, calls, operator):
    stage.put_ids(1, ROWS)
    sink = Sink(operator, calls, actions=2)
    stage.each_batch(sink, stage.source("id long"))
    assert sink.rows[0] == sink.rows[1]
    assert asked(calls) == Counter(range(ROWS))


@both
def test_a_batch_that_is_planned_again_makes_its_calls(stage, calls, operator):
    """A checkpoint that went back plans other rows as the same batch; some are equal."""
    stage.put_ids(1, ROWS)
    stage.run(operator(stage.source("id long"), calls))
    for log in ("offsets", "commits", "sources"):
        shutil.rmtree(stage.checkpoint / log)
    shutil.rmtree(stage.output)
    stage.run(operator(stage.source("id long"), calls))
    assert asked(calls) == Counter(dict.fromkeys(range(ROWS), 2))


@both
def test_the_batch_that_spark_did_not_log_is_repeated_with_the_same_rows(stage, calls, operator):
    """A column that no call uses may be added meanwhile."""
    stage.put_ids(1, ROWS)
    stage.run(operator(stage.source("id long"), calls))
    rows = stage.rows(ANSWERED)
    shutil.rmtree(stage.checkpoint / "commits")
    shutil.rmtree(stage.output)
    stage.run(operator(stage.source("id long, more string"), calls, parallelism=3))
    assert stage.rows(ANSWERED) == rows
    assert asked(calls) == Counter(range(ROWS))


@both
def test_a_bounded_dataframe_with_a_name_finds_its_answers(spark, stage, calls, operator):
    df = spark.range(ROWS)
    named = {"query": "nightly", "batch_id": 0}
    first = sorted(operator(df, calls, **named).collect())
    assert sorted(operator(df, calls, **named).collect()) == first
    assert asked(calls) == Counter(range(ROWS))


def test_a_bounded_dataframe_without_a_name_is_refused(spark, stage, calls):
    with pytest.raises(Exception, match=r"Pass query= and batch_id= to keyed, or use ctx\.call"):
        by_key(spark.range(1), calls).collect()
    with pytest.raises(Exception, match="keep_answers= needs query= and batch_id= on a bounded"):
        in_order(spark.range(1), calls)


def test_two_waits_of_one_uid_are_refused(stage, calls):
    stage.put({"id": 1})
    first = in_order(stage.source("id long"), calls).withColumnRenamed("answer", "first")
    with pytest.raises(Exception, match="the query has two operators of this uid"):
        in_order(first, calls)
    both_inputs = in_order(stage.source("id long"), calls)
    united = both_inputs.union(in_order(stage.source("id long"), calls))
    with pytest.raises(Exception, match="the query has two operators of this uid"):
        stage.run(united)


def test_partitions_that_a_coalesce_moves_find_their_answers(spark, stage, calls):
    named = {"query": "nightly", "batch_id": 0, "parallelism": 4}
    for _ in range(2):
        assert in_order(spark.range(ROWS), calls, **named).coalesce(1).count() == ROWS
    assert asked(calls) == Counter(range(ROWS))


@both
def test_the_setting_ignores_what_is_kept(spark, stage, calls, operator):
    named = {"query": "nightly", "batch_id": 0}
    operator(spark.range(ROWS), calls, **named).collect()
    spark.conf.set("spark.forebay.use-kept-answers", "false")
    try:
        operator(spark.range(ROWS), calls, **named).collect()
    finally:
        spark.conf.unset("spark.forebay.use-kept-answers")
    assert asked(calls) == Counter(dict.fromkeys(range(ROWS), 2))
