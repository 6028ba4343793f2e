"""Every bad input has a clear error, before or at the start, and committed state is kept."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import CharType, StructType

from forebay_spark_runtime import keyed, ordered_wait, why
from forebay_state_api import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    ReduceFunction,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError, Location, UnknownPluginError

from .functions import Count

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


class Both(KeyedCoProcessFunction):
    def process_element1(self, row, ctx): ...

    def process_element2(self, row, ctx): ...


@pytest.fixture(scope="module")
def users(spark):
    rows = [("ann", 1, 1.5, {"k": 1}), ("bob", 2, 2.5, {})]
    return spark.createDataFrame(rows, "user string, n long, x double, m map<string,int>")


# -- on the driver, before anything runs ------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["user"], {"uid": None}, "keyed() needs uid=: a name that the operator's state"),
        (["user"], {"uid": ""}, "keyed() needs uid="),
        (["user"], {"uid": 7}, "not 7"),
        ([], {}, "keyed() needs at least one key column"),
        (["users"], {}, "no column 'users' to key by; the columns are user, n, x, m"),
        (["m"], {}, "column 'm' of type map<string,int> cannot be a key; types that can: tinyint"),
        (["user"], {"parallelism": 0}, "parallelism is a positive number, not 0"),
        (["user"], {"parallelism": True}, "parallelism is a positive number, not True"),
        (["user"], {"parallelism": 129}, "parallelism 129 is above max_parallelism 128"),
        (["user"], {"max_parallelism": 40_000}, "max_parallelism is 1 … 32768, not 40000"),
        (["user"], {"order_by": "t"}, "no column 't' to order by; the columns are user, n"),
        (
            ["user"],
            {"order_by": ["n", "m"]},
            "column 'm' of type map<string,int> cannot be ordered",
        ),
        (["user"], {"order_by": 5}, "order_by= is the name of a column, or a list of"),
        (["user", "n", "user"], {}, "user is named twice among the key columns"),
        (["user"], {"query": "q", "state_dir": 5}, "spark.forebay.state.dir = 5: expected a path"),
        (["user"], {"query": ""}, "query= is a name, not ''"),
        (["user"], {"query": "q", "batch_id": -1}, "batch_id is a number from 0, not -1"),
        (["user"], {"query": "q", "state_dir": "nfs4://host/x"}, "nfs4"),
        (["user"], {"query": "q", "state_dir": "memory://x"}, "would be a process's own"),
        (["user"], {"in_flight_limit": 0}, "spark.forebay.in-flight-limit = 0: expected a whole"),
        (["user"], {"drain_timeout": "soon"}, "spark.forebay.drain-timeout = 'soon': expected a d"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arguments(users, columns, options, says):
    with pytest.raises(ConfigurationError) as caught:
        keyed(users, *columns, **{"uid": "bad", **options})
    assert says in str(caught.value)


def test_a_column_that_cannot_be_read(spark):
    df = spark.sql("SELECT 1 AS k, array(interval 3 months) AS v")
    with pytest.raises(ConfigurationError, match=r"^operator 'bad': column 'v' .* cast it to str"):
        keyed(df, "k", uid="bad")
    with pytest.raises(ConfigurationError, match=r"<lambda>: column 'v' of type array<interval"):
        ordered_wait(df, lambda row, client: 1, "n int")


def test_missing_state_directory(stage):
    stage.spark.conf.unset("spark.forebay.state.dir")
    with pytest.raises(
        ConfigurationError, match=r"spark.forebay.state.dir is not set: .*state_dir="
    ):
        keyed(stage.source(), "user", uid="counts")


def test_state_directory_that_is_a_file(stage):
    (stage.folder / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="file is a file, not a directory for state"):
        keyed(stage.source(), "user", uid="counts", state_dir=stage.folder / "file")


def test_unknown_backend(users):
    # The advice for names of our packages is tested where nothing else is installed.
    with pytest.raises(UnknownPluginError, match=r"'heep'.*installed.*heap"):
        keyed(users, "user", uid="bad", backend="heep")


def test_unknown_setting(users):
    users.sparkSession.conf.set("spark.forebay.in-flight-limits", "5")
    try:
        with pytest.raises(
            ConfigurationError, match=r"did you mean spark\.forebay\.in-flight-limit\?"
        ):
            keyed(users, "user", uid="bad")
    finally:
        users.sparkSession.conf.unset("spark.forebay.in-flight-limits")


def test_batch_id_of_a_stream(stage):
    with pytest.raises(ConfigurationError, match="Spark numbers the batches of a stream"):
        keyed(stage.source(), "user", uid="counts", batch_id=3)


@pytest.mark.parametrize(
    "schema", ["user strng", "", 7, "user string, user long", None, "user string n"], ids=repr
)
def test_schema_that_does_not_parse(users, schema):
    with pytest.raises(ConfigurationError, match=r"operator 'bad': (the|an) output schema"):
        keyed(users, "user", uid="bad").process(Count(), schema)


@pytest.mark.parametrize(
    "schema", ["user char(3)", "user array<varchar(3)>", StructType().add("user", CharType(3))]
)
def test_char_and_varchar_in_a_schema(users, schema):
    with pytest.raises(ConfigurationError, match="string in place of char and varchar") as caught:
        keyed(users, "user", uid="bad").process(Count(), schema)
    assert "An error occurred" not in str(caught.value)


def test_function_that_is_not_picklable(users):
    lock = threading.Lock()

    def locked(row, ctx):
        with lock:
            yield row.user, 1

    with pytest.raises(ConfigurationError, match="cannot be sent to the workers") as caught:
        keyed(users, "user", uid="bad").process(locked, SCHEMA)
    assert "locked" in str(caught.value)
    assert "in open()" in str(caught.value)


def test_a_session_in_a_function(users):
    spark = users.sparkSession

    def uses_spark(row, ctx):
        yield row.user, spark.range(3).count()

    with pytest.raises(ConfigurationError, match="uses_spark cannot be sent to the workers"):
        keyed(users, "user", uid="bad").process(uses_spark, SCHEMA)


class Misspelled(KeyedProcessFunction):
    def process_elemnt(self, row, ctx):
        yield row.user, 1


class NoReduce(ReduceFunction):
    pass


@pytest.mark.parametrize(
    ("method", "fn", "says"),
    [
        ("process", Misspelled(), "Misspelled does not define process_element(row, ctx)"),
        ("reduce", NoReduce(), "NoReduce does not define reduce(first, second)"),
        ("process", Count, "pass an instance, not the class"),
        ("process", 7, "process takes a KeyedProcessFunction or fn(row, ctx), not int 7"),
        ("process", Both(), "process takes a KeyedProcessFunction"),
        ("map", Count(), "map takes a MapFunction or fn(row), not Count"),
        ("flat_map", MapFunction, "flat_map takes a FlatMapFunction"),
        ("reduce", "sum", "reduce takes a ReduceFunction or fn(row, row), not str 'sum'"),
    ],
)
def test_functions_of_another_kind(users, method, fn, says):
    keyed_df = keyed(users, "user", uid="bad")
    arguments = (fn,) if method == "reduce" else (fn, SCHEMA)
    with pytest.raises(ConfigurationError) as caught:
        getattr(keyed_df, method)(*arguments)
    assert says in str(caught.value)


def test_connected_inputs_that_do_not_belong_together(users):
    first = keyed(users, "user", uid="both", parallelism=2)
    wrong = {
        "uid is 'both' on the first and 'other'": keyed(users, "user", uid="other", parallelism=2),
        "parallelism is 2 on the first and 3": keyed(users, "user", uid="both", parallelism=3),
        "got user string and n bigint": keyed(users, "n", uid="both", parallelism=2),
        "batch-size is '1000' on the first and '7'": keyed(
            users, "user", uid="both", parallelism=2, batch_size=7
        ),
    }
    for says, second in wrong.items():
        with pytest.raises(ConfigurationError) as caught:
            first.connect(second)
        assert says in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"takes another keyed\(...\) DataFrame"):
        first.connect(users)
    by_number = keyed(users, "user", uid="both", order_by="n")
    with pytest.raises(ConfigurationError, match="'n' of type bigint on the first and 'user' of"):
        by_number.connect(keyed(users, "user", uid="both", order_by="user"))
    second = keyed(users, "user", uid="both", parallelism=2)
    with pytest.raises(ConfigurationError, match="takes a KeyedCoProcessFunction"):
        first.connect(second).process(Count(), SCHEMA)


def test_reserved_and_repeated_columns(users):
    reserved = users.withColumn("__forebay_group", F.lit(1))
    with pytest.raises(ConfigurationError, match="columns of reserved names: __forebay_group"):
        keyed(reserved, "user", uid="bad").process(Count(), SCHEMA)
    twice = users.select("user", "n", "n")
    with pytest.raises(ConfigurationError, match="two columns of one name: user, n, n"):
        keyed(twice, "user", uid="bad").process(Count(), SCHEMA)


# -- at the start of the query, in its first batch; committed state stays --------------------


class Disagreeing(Count):
    def open(self, context):
        super().open(context)
        context.get_list_state(ListStateDescriptor("n", int))


class StateInOpen(Count):
    def open(self, context):
        super().open(context)
        self.n.value()


class OtherType(Count):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", str))


class WithTtl(Count):
    def open(self, context):
        ttl = StateTtlConfig(timedelta(days=1))
        self.n = context.get_state(ValueStateDescriptor("n", int, ttl=ttl))


class OtherKind(Count):
    def open(self, context):
        self.n = context.get_list_state(ListStateDescriptor("n", int))


class Misfit(Count):
    def process_element(self, row, ctx):
        self.n.update(99)
        yield row.user, "many"


class Bare(Count):
    def process_element(self, row, ctx):
        return row.user, 1


IN_THE_WORKER = [(WithTtl, "declare it with switch_ttl=True")]
MORE_IN_THE_WORKER = [
    (Misfit, "declared long; Misfit gave str 'many' in the row ('ann', 'many')"),
    (Disagreeing, "two descriptors disagree under the name 'n'"),
    (StateInOpen, "StateAccessError"),
    (OtherType, "StateMigrationError"),
    (OtherKind, "StateMigrationError"),
    (Bare, "returned a bare tuple, ('ann', 1): return a list"),
]
"""Errors that the engine's tests or the kit have by default; they reach the driver as others do.

A row that does not fit reaches it in ``test_types.py``.
"""


@pytest.mark.parametrize(
    "functions",
    [IN_THE_WORKER, pytest.param(MORE_IN_THE_WORKER, marks=pytest.mark.slow)],
    ids=["some", "more"],
)
def test_bad_functions_and_a_mistyped_directory_lose_nothing_committed(stage, functions):
    good = keyed(stage.source(), "user", uid="counts", parallelism=2)
    stage.put({"user": "ann"}, {"user": "bob"})
    stage.run(good.process(Count(), SCHEMA))
    stage.put({"user": "ann"})
    mistyped = keyed(stage.source(), "user", uid="counts", state_dir=stage.folder / "stat")
    with pytest.raises(Exception, match="may be mistyped") as caught:
        stage.run(mistyped.process(Count(), SCHEMA))
    assert str(stage.folder / "stat") in str(caught.value)
    for bad, says in functions:
        with pytest.raises(Exception) as caught:
            stage.run(good.process(bad(), SCHEMA))
        assert says in str(caught.value), bad
        assert "operator 'counts'" in str(caught.value) or "Misfit" in str(caught.value)
    stage.run(good.process(Count(), SCHEMA))
    assert stage.rows(SCHEMA) == [("ann", 1), ("ann", 2), ("bob", 1)]


def test_bad_keys_lose_nothing_committed(stage):
    def counted(*columns):
        source = stage.source("user string, part string, x double")
        return keyed(source, *columns, uid=f"by {columns}", parallelism=2, new_state=True).process(
            Count(), SCHEMA
        )

    stage.put({"user": "ann", "part": "a", "x": 1.0})
    stage.run(counted("user"))
    stage.put({"user": "ann", "part": "a", "x": 1.0}, {"user": None, "part": "b", "x": 2.0})
    with pytest.raises(Exception, match=r"key column 'user' is null in record \d of .*'part': 'b'"):
        stage.run(counted("user"))
    stage.run(counted("part"))
    assert stage.rows(SCHEMA) == [("ann", 1), ("ann", 1), (None, 1)]


@pytest.mark.slow  # by default: keyed_operator/test_batch_input.py, and a null key above
def test_bad_keys_of_a_bounded_dataframe(users):
    nan = users.withColumn("x", F.expr("double('NaN')"))
    with pytest.raises(Exception, match="key column 'x' is NaN in record 0"):
        keyed(nan, "x", uid="nan", parallelism=1).process(Count(), SCHEMA).collect()


@pytest.mark.slow  # by default: the harness, and columns of one key above
def test_a_part_of_a_key_that_is_null(users):
    null = users.withColumn("user", F.lit(None).cast("string"))
    with pytest.raises(Exception, match="key column 'user' is null in record"):
        keyed(null, "n", "user", uid="null").process(Count(), SCHEMA).collect()


def test_unwritable_state_directory(stage, users):
    """A directory cannot be made below a file, not even by root."""
    (stage.folder / "file").write_text("x")
    where = {"query": "q", "state_dir": stage.folder / "file" / "state"}
    unwritable = keyed(users, "user", uid="c", parallelism=1, **where)
    with pytest.raises(Exception, match="StorageError") as caught:
        unwritable.process(Count(), SCHEMA).collect()
    assert str(stage.folder / "file" / "state") in str(caught.value)
    assert "(spark.forebay.state.dir, or state_dir=)" in str(caught.value)
    assert "in the state of operator 'c', subtask" in str(caught.value)


@pytest.mark.parametrize("keyed_calls", [pytest.param(2, marks=pytest.mark.slow), 1])
def test_two_operators_of_one_uid_in_one_query(stage, keyed_calls):
    """Whether keyed() or process() was called twice."""
    source = stage.source()
    made = [keyed(source, "user", uid="same", parallelism=2) for _ in range(keyed_calls)]
    first, second = (made[at].process(Count(), SCHEMA) for at in (0, -1))
    stage.put({"user": "ann", "n": 1})
    with pytest.raises(StreamingQueryException) as caught:
        stage.run(first.union(second))
    error = why(caught.value)
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("operator 'same': the query has two operators of this uid")
    assert error.location == Location(operator="same")
    with pytest.raises(ConfigurationError, match="'same': the query has two operators"):
        keyed(first, "user", uid="same", parallelism=2).process(Count(), SCHEMA)


def test_speculation_is_refused(users, monkeypatch):
    context = users.sparkSession.sparkContext
    conf = context.getConf().set("spark.speculation", "true")
    monkeypatch.setattr(context, "_conf", conf)
    with pytest.raises(ConfigurationError, match=r"Set spark\.speculation=false"):
        keyed(users, "user", uid="bad")
