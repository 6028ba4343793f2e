"""Input and output types, and keys of every type, on real Spark.

By default, all types of keys are together in the columns of one key; ``test_keys.py`` of state-api
has each. What a function sees of each type is in ``arrow/test_rows_in.py`` of the runtime, and how
structs of odd names go out in ``arrow/test_rows_out.py``.
"""

from __future__ import annotations

import datetime
import itertools
import random
from decimal import Decimal

import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay_spark_runtime import broadcast, keyed, ordered_wait
from forebay_state_api import (
    ConfigurationError,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ValueStateDescriptor,
    key_group_of,
)

pytestmark = pytest.mark.spark

EVERYTHING = """
    SELECT id AS key,
      IF(id % 3 = 0, NULL, CAST(id AS tinyint)) AS b, CAST(id AS smallint) AS s,
      IF(id % 3 = 0, NULL, CAST(id AS int)) AS i, id * 1000000007 AS l,
      IF(id % 3 = 0, NULL, CAST(id AS float) / 2) AS f, CAST('NaN' AS double) AS d,
      id % 2 = 0 AS flag, IF(id % 3 = 0, NULL, concat('ünï ', id)) AS text,
      CAST(concat('x', id) AS binary) AS bin, CAST(NULL AS binary) AS nobin,
      CAST(id / 7 AS decimal(20, 5)) AS dec,
      CAST(id AS decimal(38, 0)) * 12345678901234567890 AS big,
      date_add(DATE'1999-12-31', CAST(id AS int)) AS day,
      timestamp_micros(1700000000000001 + id) AS at,
      IF(id % 3 = 0, NULL, TIMESTAMP_NTZ'2024-03-10 02:30:00.000005') AS wall,
      make_dt_interval(CAST(id AS int), 1, 2, 3.000004) AS span,
      array(id, NULL, 3) AS numbers, IF(id % 3 = 0, NULL, CAST(array() AS array<int>)) AS empty,
      array(array('a', NULL), NULL) AS nested_list,
      map('k', id, 'other', NULL) AS entries, map(id, array(struct(id AS x))) AS deep,
      IF(id % 3 = 0, NULL, struct(id AS x, struct(concat('y', id) AS z) AS inner)) AS record,
      array(struct(id AS x, timestamp_micros(id) AS t), NULL) AS records,
      id AS `odd name`, id AS `a.b`, id AS `class`, id AS _1
    FROM range(12)
"""


@pytest.mark.parametrize(
    "zone",
    ["America/New_York", *(pytest.param(z, marks=pytest.mark.slow) for z in ("UTC", "GMT+2"))],
)
def test_every_type_survives_the_way_in_and_out(stage, zone):
    stage.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        given = stage.spark.sql(EVERYTHING)
        given.write.parquet(str(stage.input))
        source = stage.spark.readStream.schema(given.schema).parquet(str(stage.input))
        echoed = keyed(source, "key", uid="echo").process(lambda row, ctx: [row], given.schema)
        query = (
            echoed.writeStream.format("parquet")
            .option("path", str(stage.output))
            .option("checkpointLocation", str(stage.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = stage.spark.read.parquet(str(stage.output)).orderBy("key").collect()
        assert [str(row) for row in found] == [str(row) for row in given.orderBy("key").collect()]
        assert len(found) == 12
    finally:
        stage.spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.slow
def test_what_a_function_sees(spark):
    def seen(row, ctx):
        values = [row.text, row.bin, row.dec, row.day, row.at, row.wall, row.entries, row.record]
        kinds = ", ".join(type(value).__name__ for value in values)
        yield kinds, str(row.at.tzinfo), row.record.inner.z, getattr(row, "a.b")

    df = spark.sql(EVERYTHING).where("key = 1")
    (row,) = (
        keyed(df, "key", uid="seen")
        .process(seen, "kinds string, zone string, z string, n long")
        .collect()
    )
    assert row.kinds == "str, bytes, Decimal, date, datetime, datetime, dict, Row"
    assert (row.zone, row.z, row.n) == ("UTC", "y1", 1)


OBJECTS = """
    SELECT 'a' AS k, time'12:34:56.123456' AS t, array(time'12:00:00') AS ts,
      parse_json('{"a": [1]}') AS v, map('x', parse_json('1'), 'y', NULL) AS vs,
      st_geomfromwkb(X'0101000000000000000000F03F0000000000000040') AS g,
      named_struct('v', parse_json('null')) AS s
"""


@pytest.mark.skipif(not hasattr(T, "Geometry"), reason="needs a pyspark with geometries")
def test_functions_see_what_udfs_see_of_sparks_own_objects(spark):
    """Times, variants, geometries, vectors: in, out, as a broadcast row and in a wait."""
    vectors = spark.createDataFrame([("a", Vectors.dense([1.0, 2.0]))], ["k", "vector"])
    df = spark.sql(OBJECTS).join(vectors, "k")
    names = [name for name in df.columns if name != "k"]
    udf = F.udf(repr, "string", useArrow=True)
    seen_by_udfs = df.select([udf(name) for name in names]).first()

    def seen(row, ctx):
        yield tuple(repr(row[name]) for name in names)

    class Rules(KeyedBroadcastProcessFunction):
        def process_element(self, row, ctx):
            yield from ()

        def process_broadcast_element(self, row, ctx):
            yield from seen(row, ctx)

    async def ask(row, client):
        return [([repr(row[name]) for name in names],)]

    operator = keyed(df, "k", uid="objects", parallelism=1)
    texts = "x array<string>"
    assert operator.process(lambda row, ctx: [(list(*seen(row, ctx)),)], texts).first().x == [
        *seen_by_udfs
    ]
    rules = operator.connect(broadcast(df)).process(
        Rules(), ", ".join(f"{n} string" for n in names)
    )
    assert [*rules.first()] == [*seen_by_udfs]
    assert ordered_wait(df, ask, texts).first().x == [*seen_by_udfs]
    echoed = operator.process(lambda row, ctx: [row], df.schema)
    assert str(echoed.first()) == str(df.first())


@pytest.mark.skipif(not hasattr(T, "Geometry"), reason="needs a pyspark with variants")
def test_types_are_checked_before_anything_runs(spark):
    operator = keyed(spark.sql(OBJECTS), "k", uid="objects", parallelism=1)
    with pytest.raises(ConfigurationError, match=r"column 'v' of type variant cannot be kept"):
        operator.reduce(lambda before, row: row)
    for schema in ("x struct<a:int,a:int>", "x array<struct<a:int,a:int>>"):
        with pytest.raises(ConfigurationError, match=r"column 'x' .* two fields of one name: a, a"):
            operator.process(lambda row, ctx: [], schema)
    with pytest.raises(ConfigurationError, match="state_type= of map_with_state"):
        operator.map_with_state(lambda row, value: (row, value), "k string", state_type=set[int])


def test_reduce_over_char_and_varchar(spark):
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        df = spark.sql("SELECT 'a' AS k, CAST('b' AS char(3)) AS c, CAST('c' AS varchar(3)) AS v")
        assert "char(3)" in str(df.dtypes)
        reduced = keyed(df, "k", uid="lengths", parallelism=1).reduce(lambda before, row: row)
        assert reduced.dtypes == [("k", "string"), ("c", "string"), ("v", "string")]
        assert [*reduced.first()] == ["a", "b  ", "c"]
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")


def test_a_row_that_does_not_fit(spark):
    df = spark.createDataFrame([("ann", 1)], "user string, n long")
    bad = keyed(df, "user", uid="bad").process(lambda row, ctx: [(row.n, "x")], "n long, m long")
    says = (
        r"operator 'bad', batch 0, .* column 'm' is declared long; .* gave str 'x' in the row \(1"
    )
    with pytest.raises(Exception, match=says):
        bad.collect()


@pytest.mark.slow
def test_structs_of_odd_names_come_back_from_state(spark):
    kind = "struct<x:int,`_id`:int,`y z`:int>"
    df = spark.sql(f"""
        SELECT 'a' AS k, CAST(named_struct('x', id, '_id', id, 'y z', id) AS {kind}) AS st
        FROM range(3)
    """)
    df = df.selectExpr("k", "st", "array(st) AS list", "map('k', st) AS map")
    reduced = keyed(df, "k", uid="odd", parallelism=1).reduce(lambda before, row: before)
    assert len(set(map(str, reduced.collect()))) == 1
    kept = keyed(df, "k", uid="kept", parallelism=1).map_with_state(
        lambda row, before: ((row.k, before or row.st), row.st),
        df.select("k", "st").schema,
        state_type=df.schema["st"].dataType,
    )
    assert [tuple(row.st) for row in kept.collect()] == [(0, 0, 0), (0, 0, 0), (1, 1, 1)]


def _samples():
    chance = random.Random(11)
    ints = [0, 1, -1, 127, -128]
    longs = [*ints, 2**31, -(2**63), 2**63 - 1, *(chance.getrandbits(63) for _ in range(200))]
    floats = [
        0.0,
        -0.0,
        1.5,
        -1e300,
        5e-324,
        float("inf"),
        *(chance.gauss(0, 9) for _ in range(99)),
    ]
    texts = ["", "a", "ä\0", "日本", *("x" * n for n in range(70))]
    instants = [
        datetime.datetime(1, 1, 2, tzinfo=datetime.UTC),
        datetime.datetime(2024, 3, 10, 7, 30, 0, 1, tzinfo=datetime.UTC),
        *(
            datetime.datetime.fromtimestamp(chance.uniform(-5e9, 5e9), datetime.UTC)
            for _ in range(99)
        ),
    ]
    days = [datetime.date(1, 1, 1), datetime.date(1582, 10, 4), datetime.date(9999, 12, 31)]
    cents = [Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-2) for _ in range(99)]
    return {
        "tinyint": ints,
        "int": [*ints, 2**31 - 1, -(2**31)],
        "bigint": longs,
        "float": [0.0, -0.0, 1.5, 3.25, float("-inf")],
        "double": floats,
        "string": texts,
        "binary": [bytearray(text.encode()) for text in texts],
        "boolean": [True, False],
        "date": [*days, *(one.date() for one in instants)],
        "timestamp": instants,
        "timestamp_ntz": [one.replace(tzinfo=None) for one in instants],
        "decimal(12,2)": [Decimal("0.00"), Decimal("-0.10"), Decimal("100.00"), *cents],
        "decimal(38,0)": [Decimal(0), Decimal(10**37), Decimal(-(10**20)), Decimal(1200)],
        "decimal(38,18)": [Decimal("1E-18"), Decimal("-3.500000000000000001"), Decimal(7)],
    }


def groups(row, ctx):
    yield repr(ctx.current_key), key_group_of(ctx.current_key, 128), ctx._group


def check_groups(df, *columns, keys):
    """Check that the JVM and Python compute the same key group for each key; there are ``keys``."""
    rows = (
        keyed(df, *columns, uid="groups").process(groups, "key string, ours int, jvm int").collect()
    )
    assert len(rows) == keys
    wrong = [row for row in rows if row.ours != row.jvm]
    assert not wrong


def _kinds_and_zones():
    """Yield each type of a key, those of times in two time zones; by default a string."""
    for kind in _samples():
        zones = ["UTC", *(["America/New_York"] if kind.startswith(("timestamp", "date")) else [])]
        for zone in zones:
            yield pytest.param(kind, zone, marks=[] if kind == "string" else [pytest.mark.slow])


@pytest.mark.parametrize(("kind", "zone"), [*_kinds_and_zones()])
def test_the_jvm_and_python_agree_on_key_groups(spark, kind, zone):
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        values = [(value,) for value in _samples()[kind]]
        check_groups(spark.createDataFrame(values, f"k {kind}"), "k", keys=len(values))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.slow), "America/New_York"])
def test_keys_of_several_columns(spark, zone):
    """A column of each type; an agreement that one of them lacks is lost for the whole key."""
    samples = _samples()
    most = max(map(len, samples.values()))
    columns = [itertools.islice(itertools.cycle(values), most) for values in samples.values()]
    names = [f"of {kind}" for kind in samples]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in zip(names, samples, strict=True))
    negative = "spark.sql.legacy.allowNegativeScaleOfDecimal"
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set(negative, "true")
    try:
        df = spark.createDataFrame([*zip(*columns, strict=True)], schema)
        df = df.withColumn("large", F.expr("-1E7BD * cast(`of int` as decimal(10,0))"))
        assert df.schema["large"].dataType.scale == -7
        check_groups(df, "large", *reversed(names), keys=most)
    finally:
        spark.conf.unset(negative)
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_instants_of_an_hour_that_the_session_repeats_are_two_keys(spark):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        first = 1730611800  # 01:30 in summer time; the same is shown an hour later
        df = spark.range(4).select(F.timestamp_seconds(first + F.col("id") % 2 * 3600).alias("k"))
        rows = keyed(df, "k", uid="counts", parallelism=1).process(Count(), "key string, n long")
        assert sorted(row.n for row in rows.collect()) == [1, 1, 2, 2]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


MINUS_ZERO = "cast('-0.0' as double)"


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield repr(ctx.current_key), self.n.value()


BEFORE_AND_AFTER = {
    "integer": ("cast(n as tinyint)", "n"),
    "decimal": ("cast(n / 2 as decimal(10, 1))", "cast(n / 2 as decimal(20, 4))"),
    "float": (f"cast(if(n = 1, {MINUS_ZERO}, n / 2) as float)", "if(n = 1, 0.0D, n / 2)"),
    "timestamp in another zone": ("timestamp_micros(n)", "timestamp_micros(n)"),
}


@pytest.mark.parametrize(
    "kinds",
    [
        [*BEFORE_AND_AFTER],
        *(pytest.param([kind], marks=pytest.mark.slow) for kind in BEFORE_AND_AFTER),
    ],
    ids=", ".join,
)
def test_a_key_is_found_again_under_another_type(stage, kinds):
    """Uses the backend that finds keys by their bytes."""
    rows = [{"user": "ann", "n": n} for n in range(1, 21)]
    schema = "key string, n long"

    def counted(at):
        columns = {f"k {kind}": F.expr(BEFORE_AND_AFTER[kind][at]) for kind in kinds}
        df = stage.source().withColumns(columns)
        rows = keyed(df, *columns, uid="counts", parallelism=2, backend="lsm")
        return rows.process(Count(), schema)

    stage.put(*rows)
    stage.run(counted(0))
    stage.put(*rows)
    stage.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        stage.run(counted(1))
    finally:
        stage.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(n for _, n in stage.rows(schema)) == [1] * 20 + [2] * 20
