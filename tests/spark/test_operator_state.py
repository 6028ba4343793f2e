"""Operator state on Spark, over batches, failures and changes of parallelism."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import (
    CheckpointedFunction,
    CheckpointListener,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateMigrationError,
)

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


class Buffer(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
    """Emits rows in threes, with the version of which it was last notified."""

    threshold = 3
    element_type = str
    trouble = False

    def initialize_state(self, context):
        store = context.operator_state_store
        self.waiting = store.get_list_state(ListStateDescriptor("waiting", self.element_type))
        self.union = store.get_union_list_state(ListStateDescriptor("union", int))
        self.notified = store.get_broadcast_state(MapStateDescriptor("notified", str, int))
        self.rows = list(self.waiting.get())
        self.complete = 0

    def notify_checkpoint_complete(self, version):
        assert version > (self.notified.get("version") or 0)
        self.complete = version

    def process_element(self, row, ctx):
        assert self.complete == ctx.batch_id
        if self.trouble:
            message = "trouble"
            raise ValueError(message)
        self.rows.append(row.user)
        if len(self.rows) >= self.threshold:
            yield from ((user, ctx.batch_id) for user in self.rows)
            self.rows.clear()

    def snapshot_state(self, context):
        self.waiting.update(self.rows)
        self.union.update([context.version])
        self.notified.put("version", self.complete)


class Flushing(Buffer):
    threshold = 1


class Numbers(Buffer):
    element_type = int


class Troubled(Buffer):
    trouble = True


def buffered(stage, function, parallelism):
    operator = keyed(stage.source(), "user", uid="buffer", parallelism=parallelism)
    return operator.process(function, SCHEMA)


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_what_waits_is_kept_over_batches_failures_and_rescales(stage, backend):
    stage.spark.conf.set("spark.forebay.state.backend", backend)
    users = [f"user{n}" for n in range(17)]
    for number, parallelism in enumerate((2, 3)):
        for start in (0, 3):
            first = number * 6 + start
            stage.put(*[{"user": user} for user in users[first : first + 3]])
        if number == 1:
            with pytest.raises(Exception, match="trouble"):
                stage.run(buffered(stage, Troubled(), 2))
        stage.run(buffered(stage, Buffer(), parallelism))
    stage.put(*[{"user": user} for user in users[12:15]])
    stage.put(*[{"user": user} for user in users[15:]])
    stage.run(buffered(stage, Flushing(), 1))
    assert sorted(user for user, _ in stage.rows(SCHEMA)) == sorted(users)


@pytest.mark.slow  # by default: the kit
def test_another_type_of_what_waits_is_refused(stage):
    stage.put({"user": "ann"})
    stage.run(buffered(stage, Buffer(), 2))
    stage.put({"user": "bob"})
    with pytest.raises(Exception, match=StateMigrationError.__name__):
        stage.run(buffered(stage, Numbers(), 1))
    stage.run(buffered(stage, Flushing(), 1))
    assert sorted(user for user, _ in stage.rows(SCHEMA)) == ["ann", "bob"]
