"""The pulse: every subtask learns the time of every micro-batch, with rows and without."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_spark_runtime import broadcast, keyed
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)

pytestmark = pytest.mark.spark

SCHEMA = "user string, what string"


class Later(KeyedProcessFunction):
    """Registers timers at the time of each row's batch and a moment later."""

    def process_element(self, row, ctx):
        now = ctx.timers.processing_time
        ctx.timers.register_processing_time(now)
        ctx.timers.register_processing_time(now + timedelta(milliseconds=1))
        yield row.user, f"row in {ctx.batch_id}"

    def on_timer(self, at, ctx):
        yield ctx.current_key, f"timer in {ctx.batch_id}"


class Both(KeyedCoProcessFunction):
    process_element1 = process_element2 = Later.process_element
    on_timer = Later.on_timer


class AlsoRules(KeyedBroadcastProcessFunction):
    process_element = Later.process_element
    on_timer = Later.on_timer

    def process_broadcast_element(self, row, ctx):
        yield "rule", f"{row.user} in {ctx.batch_id}"


def later(df, uid="later", **options):
    return keyed(df, "user", uid=uid, parallelism=2, **options)


def counts(query, name):
    """Return a figure of all micro-batches of a query: uid → total."""
    found = {}
    for event in query.recentProgress:
        for one in operators_of(event):
            found[one.uid] = found.get(one.uid, 0) + one.figures.get(name, 0)
    return found


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_timers_fire_in_the_micro_batch_in_which_they_are_due(stage, backend):
    for user in "abbb":
        stage.put({"user": user})
    query = stage.run(later(stage.source(), backend=backend).process(Later(), SCHEMA))
    assert [what for user, what in stage.rows(SCHEMA) if user == "a"] == [
        "row in 0",
        "timer in 0",
        "timer in 1",
    ]
    of_b = [f"{what} in {n}" for n in (1, 2, 3) for what in ("row", "timer")]
    of_b += [f"timer in {n}" for n in (2, 3)]
    assert [what for user, what in stage.rows(SCHEMA) if user == "b"] == sorted(of_b)
    assert counts(query, "rows_in") == {"later": 4}
    assert sum(event["numInputRows"] for event in query.recentProgress) == 4
    observed = [row for event in query.recentProgress for row in event["observedMetrics"].values()]
    assert [row["subtasks"] for row in observed if "subtasks" in row] == [2, 2, 2, 2]
    entry = (stage.checkpoint / "offsets" / "3").read_text().splitlines()
    assert len(entry) == 3, "the version, the metadata, and the offset of one source"


def test_two_inputs_of_which_one_is_an_operator(stage):
    first, second = stage.folder / "first", stage.folder / "second"
    for _ in range(3):
        stage.put({"user": "b"}, into=first)
    stage.put({"user": "a"}, into=second)
    above = later(stage.source(folder=first), "above").process(Later(), SCHEMA)
    sides = [later(df, "both") for df in (above, stage.source(SCHEMA, folder=second))]
    query = stage.run(sides[0].connect(sides[1]).process(Both(), SCHEMA))
    assert [what for user, what in stage.rows(SCHEMA) if user == "a"] == [
        "row in 0",
        "timer in 0",
        "timer in 1",
    ]
    assert counts(query, "rows_in") == {"above": 3, "both": 1 + 3 + 3 + 2}


def test_a_broadcast_input_beside_a_quiet_one(stage):
    rules = stage.folder / "rules"
    stage.put({"user": "a"})
    for name in ("one", "two"):
        stage.put({"user": name}, into=rules)
    operator = later(stage.source()).connect(broadcast(stage.source(folder=rules)))
    stage.run(operator.process(AlsoRules(), SCHEMA))
    assert stage.rows(SCHEMA) == [
        ("a", "row in 0"),
        ("a", "timer in 0"),
        ("a", "timer in 1"),
        *[("rule", "one in 0")] * 2,
        *[("rule", "two in 1")] * 2,
    ]


def test_in_foreach_batch(stage):
    for user in "abb":
        stage.put({"user": user})

    def each(df, batch_id):
        later(df).process(Later(), SCHEMA).write.mode("append").json(str(stage.output))

    stage.each_batch(each)
    rows = stage.rows_by_spark(SCHEMA)
    assert sorted(what for user, what in rows if user == "a") == [
        "row in 0",
        "timer in 0",
        "timer in 1",
    ]


def test_spark_generates_no_code_that_holds_the_time(stage):
    """Such code would be compiled again in each micro-batch."""
    stage.put({"user": "a"})
    query = stage.run(later(stage.source()).process(Later(), SCHEMA))
    nodes = query._jsq.explainInternal(False).splitlines()
    with_time = [node for node in nodes if "unix_millis" in node]
    assert any(" Project " in node for node in with_time)
    assert not [node for node in with_time if "*(" in node], "a node of generated code"
