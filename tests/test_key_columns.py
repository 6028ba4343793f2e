"""State goes on only under the key columns that it is kept under, on every backend."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_engine.versions import Checkpoint, OperatorStorage, open_version
from forebay_engine.versions.format.keyed_by import KeyColumn, KeyedBy
from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import (
    ConfigurationError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StateMigrationError,
    ValueStateDescriptor,
)
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.importing import import_state, open_next, replace_state
from forebay_state_processor.reading import open_state
from forebay_testing.job import KeyedJob


class Row(NamedTuple):
    user: object = "a"
    account: object = "a"
    day: int = 1


COUNT = ValueStateDescriptor("n", int, default=0)


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        return [(self.n.value(),)]


class CountBoth(KeyedCoProcessFunction):
    open = Count.open
    process_element1 = process_element2 = Count.process_element


class Stateless(KeyedProcessFunction):
    def process_element(self, row, ctx):
        yield (0,)


@pytest.fixture(params=["heap", "lsm"])
def run(request, tmp_path):
    """Runs one micro-batch of a query, as a start of its own."""

    def micro_batch(key_by, *rows, function=Count, **how):
        named = {"state_dir": tmp_path, "query": "q", "uid": "u", "backend": request.param} | how
        with FunctionHarness(function(), key_by, **named) as harness:
            return [one for (one,) in harness.process(rows or [Row()])]

    return micro_batch


def stored(folder, query="q"):
    storage = OperatorStorage(open_storage(str(folder)), f"{query}/u")
    with open_version(storage, uid="u") as reader:
        (found,) = {str(manifest.keyed_by) for manifest in reader.manifests}
        return found


def test_another_column_of_the_same_type(run, tmp_path):
    assert run("user") == [1]
    says = (
        r"operator 'u': the state is kept under the key column 'user', and that column is now "
        r"'account': .* pass key_alias=\{'account': 'user'\}; .* another uid"
    )
    with pytest.raises(StateMigrationError, match=says):
        run("account")
    assert run("user") == [2]
    assert run("account", uid="other") == [1]
    assert run("account", key_alias={"account": "user"}) == [3]
    assert stored(tmp_path) == "[[['account', 'string']]]"
    assert run("account", key_alias={"account": "user"}) == [4]
    assert run("account") == [5]
    with pytest.raises(StateMigrationError, match=r"key_alias=\{'user': 'account'\}"):
        run("user")


def test_several_columns_in_their_order(run):
    assert run(["user", "account"]) == [1]
    for others, says in (
        (["account", "user"], r"key_alias=\{'account': 'user'\}"),
        (["user", "day"], r"key_alias=\{'day': 'account'\}"),
        (["user"], r"\(user string, account string\), and they are now \(user\): nothing that is"),
        (["user", "account", "day"], r"and they are now \(user, account, day\)"),
    ):
        with pytest.raises(StateMigrationError, match=says):
            run(others)
    renamed = {"account": "user", "user": "account"}
    assert run(["account", "user"], key_alias=renamed) == [2]


@pytest.mark.parametrize("declared", [None, str])
def test_a_key_of_another_type(run, declared):
    assert run("user", key_type=declared) == [1]
    with pytest.raises((StateMigrationError, ConfigurationError), match=r"string|type str"):
        run("user", Row(user=5), key_type=declared and int)
    assert run("user", key_type=declared) == [2]


@pytest.mark.parametrize("declared", [None, datetime])
def test_a_timestamp_that_has_lost_its_zone(run, declared):
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    assert run("user", Row(noon), key_type=declared) == [1]
    says = r"\(user timestamp\), and they are now \(user timestamp_ntz\)"
    with pytest.raises(StateMigrationError, match=says):
        run("user", Row(noon.replace(tzinfo=None)), key_type=declared)


def test_keys_of_two_kinds_in_one_run():
    for second in (5, 1.0, b"a", None, ("a",)):
        with FunctionHarness(Count(), "user") as harness:
            harness.process([Row("a")])
            with pytest.raises(ConfigurationError, match="record 1 of the micro-batch"):
                harness.process([Row("a"), Row(second)])
            assert harness.state(COUNT, "a") == 1


def test_keys_of_two_inputs_are_of_one_kind():
    with FunctionHarness(CountBoth(), "user") as harness:
        found = harness.process([Row(Decimal(5))], [Row(Decimal("5.00")), Row(Decimal("5.1"))])
        assert found == [(1,), (2,), (1,)]
        with pytest.raises(ConfigurationError, match="record 0 of the second input"):
            harness.process([Row(Decimal(5))], [Row(5)])


def test_the_inputs_of_a_connected_function(run, tmp_path):
    assert run("user") == [1]
    assert run("user", function=CountBoth) == [2]
    assert stored(tmp_path) == "[[['user', 'string']], [['user', 'string']]]"
    with pytest.raises(StateMigrationError, match="the key column 'user'"):
        run("account", function=CountBoth)
    assert run("user") == [3]
    assert stored(tmp_path) == "[[['user', 'string']]]"


def test_a_fork_begins_under_the_columns_of_its_source(run, tmp_path):
    run("user")
    fork = {"query": "fork", "restore_from": "q"}
    with pytest.raises(StateMigrationError, match="key_alias="):
        run("account", **fork)
    assert run("account", key_alias={"account": "user"}, **fork) == [2]
    assert stored(tmp_path, "fork") == "[[['account', 'string']]]"


def test_names_that_are_not_known(run, tmp_path):
    """A callable has no column: the stored names stay, and are checked again later."""
    assert run(lambda row: row.account) == [1]
    assert stored(tmp_path) == "[[['', 'string']]]"
    assert run("user") == [2]
    assert run(lambda row: row.account) == [3]
    assert stored(tmp_path) == "[[['user', 'string']]]"
    with pytest.raises(StateMigrationError, match="key_alias="):
        run("account")


def test_an_operator_without_keyed_state_may_be_keyed_by_anything(run):
    assert run("user", function=Stateless) == [0]
    assert run(["account", "day"], function=Stateless) == [0]
    assert run("day") == [1]


@pytest.mark.parametrize(
    ("alias", "says"),
    [
        ("user", "maps a key column to its former name"),
        ({"user": 5}, "maps a key column to its former name"),
        ({"day": "user"}, "'day', which is no key column; the key columns are user"),
    ],
)
def test_an_alias_that_cannot_be(alias, says):
    with pytest.raises(ConfigurationError, match=f"operator 'test': key_alias=.*{says}"):
        FunctionHarness(Count(), "user", key_alias=alias)
    with pytest.raises(ConfigurationError, match="key_alias="):
        FunctionHarness(Count(), lambda row: row.user, key_alias={"user": "account"})


class Stopped:
    """A query keyed by a column of times, which has stopped after its first micro-batch."""

    def __init__(self, backend, folder, kind):
        self.kind = kind
        self.key = datetime(2024, 3, 31, 2, 30, tzinfo=None if kind.endswith("ntz") else UTC)
        self.named = {"query": "q", "uid": "u"}
        self.state_dir, self.checkpoint = str(folder / "state"), str(folder / "checkpoint")
        self.conf = {"spark.forebay.state.backend": backend}
        self.job = self.job_of(backend)
        now_ms = self.job.clock.now_us // 1_000
        self.job.checkpoint = Checkpoint(location="file:/checkpoint", times_ms={0: now_ms})
        self.job.do(self.key, ("n.update", 7))
        for name, text in (
            ("metadata", '{"id":"q"}'),
            ("offsets/0", f'v1\n{{"batchTimestampMs":{now_ms}}}\n{{}}'),
            ("commits/0", 'v1\n{"nextBatchWatermarkMs":0}'),
        ):
            path = folder / "checkpoint" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def job_of(self, backend, **how):
        named = self.named | how
        root = open_storage(self.state_dir)
        job = KeyedJob(
            plugins().backend(backend), root, descriptors=[COUNT], key_type=datetime, **named
        )
        job.keyed_by = KeyedBy([[KeyColumn("at", self.kind)]])
        return job

    def exported(self):
        with open_next(self.state_dir, **self.named, checkpoint=self.checkpoint) as snapshot:
            return snapshot.to_arrow("n").read_all()


@pytest.fixture(params=["timestamp", "timestamp_ntz"])
def stopped(request, tmp_path):
    return Stopped("heap", tmp_path, request.param)


def test_keys_of_times_that_go_out_come_back(stopped):
    tables = {"n": stopped.exported()}
    replace_state(stopped.state_dir, **stopped.named, checkpoint=stopped.checkpoint, tables=tables)
    stopped.job.restart()
    assert stopped.job.do(stopped.key, ("n.value",)) == [7]


def test_keys_of_times_that_become_another_operator(stopped):
    tables = {"n": stopped.exported()}
    with open_state(stopped.state_dir, **stopped.named, provisional=True) as like:
        for query, types in (
            ("like", {"like": like}),
            ("typed", {"function": Count, "key": stopped.kind, "max_parallelism": 8}),
        ):
            to = {"query": query, "uid": "u"}
            import_state(stopped.state_dir, **to, tables=tables, **types)
            job = stopped.job_of("heap", query=query)
            assert job.do(stopped.key, ("n.value",)) == [7]
            import_state(stopped.state_dir, query=f"{query} 2", uid="u", tables=tables, **types)
            other = stopped.job_of("heap", query=f"{query} 2")
            kinds = {"timestamp", "timestamp_ntz"} - {stopped.kind}
            other.keyed_by = KeyedBy([[KeyColumn("at", *kinds)]])
            with pytest.raises(StateMigrationError, match=r"under the key columns \(timestamp"):
                other.do(stopped.key, ("n.value",))


def test_a_time_is_looked_up_as_the_key_column_has_it(stopped):
    wall = stopped.key.replace(tzinfo=None)
    with open_state(stopped.state_dir, **stopped.named, provisional=True) as snapshot:
        for key in (wall, wall.replace(tzinfo=UTC)):
            assert snapshot.get("n", key) == 7
            (row,) = snapshot.rows_of("n", [key])
            assert row.key == stopped.key
    options = ["--state-dir", stopped.state_dir, "--provisional", "--json"]
    for text in (wall.isoformat(), f"{wall.isoformat()}+00:00"):
        found = CliRunner().invoke(main, ["state", "get", text, *options])
        assert json.loads(found.stdout)["states"]["n"]["value"] == 7


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("at {}", ""),
        ("{}", ""),
        ("day {}", "pass key_alias={'day': 'at'}"),
        ("at timestamp_ntz", "they are now (at timestamp_ntz)"),
        ("at {}, day date", "is tuple[datetime, date]; keys do not migrate"),
        ("array<int>", "keys do not migrate"),
        ("map<string,int>", "keys do not migrate"),
    ],
)
def test_the_command_checks_key_columns_before_a_start(tmp_path, declared, says):
    stopped = Stopped("heap", tmp_path, "timestamp")
    options = ["--state-dir", stopped.state_dir, "--query", "q", "--uid", "u", "--provisional"]
    key = declared.format(stopped.kind)
    found = CliRunner().invoke(main, ["state", "schema", *options, "--key", key, "--json"])
    assert found.exit_code == bool(says), found.output
    plain = json.loads(found.stdout)
    assert says in plain["key_misfit"]
    assert plain["key_columns"] == [[{"name": "at", "kind": "timestamp"}]]
    shown = CliRunner().invoke(main, ["state", "schema", *options]).stdout
    assert "key datetime, keyed by at timestamp\n" in shown


def test_names_that_a_terminal_would_obey(run):
    evil = "user\x1b]52;c;aGk=\x07\u202e"
    assert run("user", Row(5)) == [1]
    for alias, value in ({}, 5), ({evil: "user"}, "a"):
        with pytest.raises(StateMigrationError) as caught:
            run(evil, {evil: value}, key_alias=alias)
        assert str(caught.value).isprintable()
