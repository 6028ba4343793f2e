"""The ordered wait that carries late rows to the next micro-batch, on Spark."""

from __future__ import annotations

import asyncio
import time

import pytest
from pyspark.errors import StreamingQueryException

from forebay_spark_runtime import ordered_wait, why
from forebay_state_api.errors import ConfigurationError, Location, StateMigrationError

pytestmark = pytest.mark.spark

ASKED = "id long, answer string"


async def ask(row, client):
    """Row 3 is late in its first micro-batch, because its first call takes long."""
    del client
    first = SEEN / str(row.id)
    if row.id == 3 and not first.exists():
        first.touch()
        await asyncio.sleep(600)
    return f"a:{row.id}"


SEEN = None


def started(stage, df):
    """Start a query that does not end by itself."""
    writer = df.writeStream.format("json").option("path", str(stage.output))
    return writer.option("checkpointLocation", str(stage.checkpoint)).start()


def run_until(stage, df, rows):
    """Run a query without end until a number of rows are in the sink."""
    query = started(stage, df)
    end = time.monotonic() + 100
    try:
        while time.monotonic() < end and query.exception() is None:
            query.processAllAvailable()
            if len(stage.rows(ASKED)) >= rows:
                break
    finally:
        query.stop()


def waiting(stage, schema="id long", **more):
    more = {"pending": "carry", "uid": "ask", "parallelism": 2, "carry_after": 0.5, **more}
    return ordered_wait(stage.source(schema), ask, "answer string", **more)


@pytest.fixture(autouse=True)
def _seen(tmp_path):
    global SEEN  # noqa: PLW0603 - the function travels with the module's globals
    SEEN = tmp_path / "seen"
    SEEN.mkdir()


def test_two_operators_of_one_uid_are_refused_by_their_tasks(stage):
    """These send no figures, so that Spark sees no two metrics of one name."""
    stage.put({"id": 1})
    both = [waiting(stage).repartition(1) for _ in range(2)]
    query = started(stage, both[0].union(both[1]))
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()
    error = why(query)
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("operator 'ask': the query has two operators of this uid")
    assert error.location == Location(operator="ask")
    assert stage.rows(ASKED) == []


def test_a_late_row_goes_out_with_the_next_micro_batch(stage):
    stage.put(*[{"id": n} for n in range(6)])
    run_until(stage, waiting(stage), 3)
    assert stage.rows(ASKED) == [(n, f"a:{n}") for n in range(3)]
    stage.put({"id": 6, "more": "x"})
    with pytest.raises(Exception, match=StateMigrationError.__name__):
        run_until(stage, waiting(stage, "id long, more string"), 7)
    run_until(stage, waiting(stage, parallelism=3), 7)
    assert stage.rows(ASKED) == [(n, f"a:{n}") for n in range(7)]


@pytest.mark.slow  # by default: another type in waiting/test_carry.py, and a column more above
@pytest.mark.parametrize(
    ("changed", "now"),
    [
        pytest.param(
            *("id long, more string, most int", "id bigint, more string, most int"), id="added"
        ),
        pytest.param("id long", "id bigint", id="removed"),
        pytest.param("id long, more int", "id bigint, more int", id="retyped"),
    ],
)
def test_other_columns_are_refused_while_rows_are_pending(stage, changed, now):
    stage.put(*[{"id": n, "more": "1"} for n in range(6)])
    run_until(stage, waiting(stage, "id long, more string"), 3)
    stage.put({"id": 6, "more": "1"})
    expected = (
        f"{StateMigrationError.__name__}.*columns id bigint, more string; .* now has {now}\\."
    )
    with pytest.raises(Exception, match=expected):
        run_until(stage, waiting(stage, changed), 7)
    assert stage.rows(ASKED) == [(n, f"a:{n}") for n in range(3)]


def test_triggers_that_end_are_refused_by_the_tasks(stage):
    stage.put({"id": 1})
    with pytest.raises(Exception, match="availableNow"):
        stage.run(waiting(stage))


def test_what_cannot_be_is_refused_when_the_wait_is_made(stage, spark):
    def plain(row, client):
        return row, client

    with pytest.raises(ConfigurationError, match="needs a stream"):
        ordered_wait(spark.range(3), ask, "answer string", pending="carry", uid="ask")
    with pytest.raises(ConfigurationError, match="async function"):
        ordered_wait(stage.source(), plain, "answer string", pending="carry", uid="ask")
    with pytest.raises(ConfigurationError, match="needs uid="):
        waiting(stage, uid=None)
    with pytest.raises(ConfigurationError, match="carry_after"):
        waiting(stage, carry_after=-1)
    with pytest.raises(ConfigurationError, match="uid=, parallelism=, carry_after= go with"):
        waiting(stage, pending="wait")
    with pytest.raises(ConfigurationError, match="'wait' or 'carry'"):
        waiting(stage, pending="drop")
