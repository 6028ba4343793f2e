"""Permission to make a version: two queries or drivers, copied checkpoints, wrong settings."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


def counted(stage, **options):
    return keyed(stage.source(), "user", uid="counts", parallelism=2, **options).process(
        Count(), SCHEMA
    )


@pytest.mark.slow  # by default: test_savepoints.py and test_timelines.py, one after another
def test_two_queries_on_one_state_directory_do_not_touch_each_other(stage):
    for _ in range(2):
        stage.put({"user": "ann"}, {"user": "bob"})
    one = stage.start(counted(stage))
    other = stage.start(
        counted(stage), checkpoint=stage.folder / "checkpoint 2", output=stage.folder / "output 2"
    )
    one.awaitTermination()
    other.awaitTermination()
    expected = [(user, n) for user in ("ann", "bob") for n in (1, 2)]
    assert stage.rows(SCHEMA) == expected
    assert stage.rows(SCHEMA, output=stage.folder / "output 2") == expected
    assert {path.name for path in stage.state.iterdir()} == {one.id, other.id}


def test_the_same_dataframe_started_again_after_another_driver(stage):
    """Schedule 2: the second start is a separate run and continues from the other's state."""
    stage.put({"user": "ann"})
    result = counted(stage)
    stage.run(result)
    stage.put({"user": "ann"})
    stage.run(counted(stage))
    stage.put({"user": "ann"})
    stage.run(result)
    assert stage.rows(SCHEMA) == [("ann", 1), ("ann", 2), ("ann", 3)]
    assert len(list(stage.operators()["counts"].glob("epochs/*"))) == 3


def test_asynchronous_progress_tracking_is_refused(stage):
    stage.put({"user": "ann"})
    options = {
        "asyncProgressTrackingEnabled": "true",
        # Spark's own test option: without it few sinks may be combined with the first one.
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    }

    def each(df, batch_id):
        keyed(df, "user", uid="counts").process(Count(), SCHEMA).collect()

    stream = counted(stage).writeStream.format("noop")
    for name, writer in (("a", stream), ("b", stage.source().writeStream.foreachBatch(each))):
        writer = writer.option("checkpointLocation", str(stage.folder / name)).options(**options)
        # Spark refuses to combine it with availableNow.
        query = writer.trigger(processingTime="100 milliseconds").start()
        with pytest.raises(Exception, match="started with asyncProgressTrackingEnabled=true"):
            query.awaitTermination(60)
    stage.run(counted(stage), checkpoint=stage.folder / "other")
    assert stage.rows(SCHEMA) == [("ann", 1)]
