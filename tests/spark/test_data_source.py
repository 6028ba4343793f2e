"""``spark.read.format("forebay")`` on Spark; what needs no session is tested with the package."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 3.5 has no Python data sources")

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api import ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.keys import key_group_of
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob

# Each read starts Pythons to plan it; the first one also waits for the JVM, on a very busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PUSHED = hasattr(DataSourceReader, "pushFilters")
"""pyspark 4.1 and newer; an older one pushes no filters down to Python."""
LIMITED = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
"""pyspark 4.2 and newer; an older one takes all versions in a micro-batch."""
N = ValueStateDescriptor("n", int)
SEEN = ListStateDescriptor("seen", str)
KEYS = [f"user {number}" for number in range(20)]
EVERY = sorted([(key, at) for at, key in enumerate(KEYS)], key=str)


@pytest.fixture
def job(stage):
    """A job with 20 keys; its second version is final, its third one is not."""
    storage = open_storage(str(stage.state))
    sizes = {"parallelism": 2, "max_parallelism": 8}
    job = KeyedJob(LsmBackend, storage, descriptors=[N, SEEN], key_type=str, **sizes)
    job.scripts([(key, [("n.update", at)]) for at, key in enumerate(KEYS)])
    job.do(KEYS[0], ("seen.add", "x"))
    job.do(KEYS[1], ("n.update", 1_000))
    return job


@pytest.fixture
def read(stage):
    def read(**options):
        given = {"query": "query", "uid": "operator"} | options
        return stage.spark.read.format("forebay").options(**given).load(str(stage.state))

    return read


def values(df, *columns):
    return sorted(map(tuple, df.select(*columns).collect()), key=str)


def values_and_tasks(df, *columns):
    """Return the rows, and how many tasks read them, of one plan."""
    rdd = df.select(*columns).rdd
    return sorted(map(tuple, rdd.collect()), key=str), rdd.getNumPartitions()


def test_all_actions_of_a_dataframe_read_the_version_that_load_chose(job, read):
    df = read()
    assert values_and_tasks(df, "key", "n") == (EVERY, 1)  # two subtasks that have little
    job.do(KEYS[1], ("n.update", 2_000))
    again = df.where(f"seen is not null or key = '{KEYS[1]}'")
    assert values(again, "key", "n", "seen") == [(KEYS[0], 0, ["x"]), (KEYS[1], 1, None)]
    one = read(state="n", keys=f'["{KEYS[1]}"]', provisional="true")
    assert values(one, "value") == [(2_000,)]
    shown = [frame.schema[0].metadata["forebay"] for frame in (df, one)]
    assert [(of["version"], of["final"]) for of in shown] == [(2, True), (4, False)]


def test_key_groups_that_lie_apart_are_read_by_several_tasks(job, read):
    df = read(state="n", keyGroups="0-1,6-7")
    wanted = [key for key in KEYS if key_group_of(key, 8) in {0, 1, 6, 7}]
    assert values_and_tasks(df, "key") == (sorted((key,) for key in wanted), 2)


def test_an_error_reaches_the_user(job, read):
    with pytest.raises(PySparkException, match="no option 'sate'; did you mean 'state'"):
        read(sate="n")


@pytest.fixture(params=["true", "false"])
def setting(stage, request):
    """Spark's setting for filters that are pushed down; pyspark 4.0 knows none of this name."""
    stage.spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    stage.spark.conf.unset(PUSHDOWN)


def test_filters_are_pushed_down_where_spark_does_so(job, read, setting):
    """Filters that are not pushed down are Spark's, as in the first test."""
    pushed = read(pushdown="true").where(f"key in ('{KEYS[4]}', '{KEYS[5]}') and n > 4")
    if not PUSHED or setting == "false":
        refused = "DATA_SOURCE_PUSHDOWN_DISABLED" if PUSHED else r"needs pyspark 4\.1 or newer"
        with pytest.raises(PySparkException, match=refused):
            pushed.collect()
    else:
        # Two ranges of key groups.
        assert values_and_tasks(pushed, "key", "n") == ([(KEYS[5], 5)], 2)


@pytest.mark.skipif(LIMITED, reason="this pyspark has admission control")
def test_an_older_pyspark_has_no_limit_of_versions(job, stage):
    options = {"query": "query", "uid": "operator", "state": "n", "changes": "true"}
    source = stage.spark.readStream.format("forebay").options(**options)
    limited = source.option("maxVersionsPerTrigger", "1").load(str(stage.state))
    with pytest.raises(PySparkException, match=r"needs pyspark 4\.2 or newer"):
        stage.run(limited)


def test_a_stream_of_changes_goes_on_after_a_restart(job, stage):
    def changes():
        options = {"query": "query", "uid": "operator", "state": "n", "changes": "true"}
        if LIMITED:
            options["maxVersionsPerTrigger"] = "1"
        source = stage.spark.readStream.format("forebay")
        return source.options(**options, old="true").load(str(stage.state))

    columns = "key string, namespace string, key_group int, operation string, value long"
    columns += ", old long, version long, run string"
    query = stage.run(changes())
    assert len([one for one in query.recentProgress if one.numInputRows]) == 1
    first = stage.rows(columns)
    assert {(row[0], row[3], row[4], row[6]) for row in first} == {
        (key, "put", at, 1 if LIMITED else 2) for key, at in EVERY
    }
    job.do(KEYS[2], ("n.clear",))
    job.do(KEYS[3])
    stage.run(changes())
    later = sorted(set(stage.rows(columns)) - set(first))
    assert [(*row[:1], *row[3:7]) for row in later] == [
        (KEYS[1], "put", 1_000, 1, 3 if LIMITED else 4),
        (KEYS[2], "removed", None, 2, 4),
    ]
