"""The identity of a task, from its context and the driver's options."""

from __future__ import annotations

import attrs
import pytest

from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver.operator_names import SAME_UID
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.driver.session import MicroBatch
from forebay_spark_runtime.worker_process.task_identity import TaskIdentity
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import resolve_settings

STREAM = {
    "sql.streaming.queryId": "spark's query",
    "streaming.sql.batchId": "7",
    "spark.jobGroup.id": "spark's run",
    "spark.app.id": "app",
}


class Task:
    """A ``TaskContext``."""

    def __init__(self, properties, partition=0):
        self.getLocalProperty = properties.get
        self.partitionId = lambda: partition
        self.taskAttemptId = lambda: 41
        self.attemptNumber = lambda: 1


def options(batch=None):
    return KeyedOptions(
        uid="u",
        parallelism=2,
        max_parallelism=128,
        batch=batch or MicroBatch(),
        state_dir="/state",
        order_by=(),
        new_state=False,
        settings=resolve_settings({}),
        keyed_uuid="uuid",
    )


def test_a_stream_s_batch_is_the_task_s():
    found = TaskIdentity.of(options(), Task(STREAM, partition=1), streaming=True)
    assert found.query == "spark's query"
    identity = found.subtask
    assert (identity.batch_id, identity.subtask, identity.attempt_id) == (7, 1, 41)
    assert (identity.run.run_id, identity.run.app_id) == ("spark's run", "app")
    assert identity.attempt_number == 1
    assert identity.consecutive


def test_query_names_the_state_of_a_stream():
    found = TaskIdentity.of(options(MicroBatch(query="mine")), Task(STREAM), streaming=True)
    assert found.query == "mine"


def test_elsewhere_the_batch_is_the_driver_s():
    """The action that evaluates it may have any job group."""
    batch = MicroBatch(query="q", batch_id=3, run_id="run at keyed()")
    found = TaskIdentity.of(
        options(batch), Task({**STREAM, "spark.jobGroup.id": "x"}), streaming=False
    )
    assert (found.query, found.subtask.batch_id) == ("q", 3)
    assert not found.subtask.consecutive
    assert found.subtask.run.run_id == "run at keyed()"


def test_two_operators_in_one_action_on_a_bounded_dataframe_are_distinct():
    task = Task({**STREAM, "spark.sql.execution.id": "12"})
    one = options(MicroBatch(query="q"))
    retried = attrs.evolve(one, driver="another process")
    here, there = [TaskIdentity.of(o, task, streaming=False).subtask.run for o in (one, retried)]
    assert here.action.endswith(":12")
    assert here.spark_run != there.spark_run, "a driver that is tried again counts from 0 as well"
    assert TaskIdentity.of(options(), task, streaming=True).subtask.run.action is None


def test_without_a_query_state_is_dropped():
    found = TaskIdentity.of(options(), Task({}), streaming=False)
    assert found.query is None
    assert found.subtask.batch_id == 0


def test_a_partition_beyond_the_operator_s():
    with pytest.raises(ConfigurationError, match=r"partition 2 ran, of 2 from 0, .* A union or"):
        TaskIdentity.of(options(), Task(STREAM, partition=2), streaming=True)


def test_a_stream_without_a_batch_id():
    with pytest.raises(ConfigurationError, match="no batch id"):
        TaskIdentity.of(options(), Task({}), streaming=True)


def test_two_operators_of_one_uid_are_refused_before_their_partitions_are_looked_at():
    task = Task({**STREAM, SAME_UID: "u"}, partition=2)
    with pytest.raises(ConfigurationError, match="'u': the query has two operators"):
        TaskIdentity.of(options(), task, streaming=True)
    other = Task({**STREAM, SAME_UID: "other"})
    assert TaskIdentity.of(options(), other, streaming=True).subtask.uid == "u"


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        (query_listener.MARK, "asyncProgressTrackingEnabled=true"),
        (query_listener.REAL_TIME, "the query runs in real-time mode"),
    ],
)
def test_a_marked_query_is_refused(mark, reason):
    task = Task({**STREAM, mark: "true"})
    with pytest.raises(ConfigurationError, match=reason):
        TaskIdentity.of(options(), task, streaming=True)
