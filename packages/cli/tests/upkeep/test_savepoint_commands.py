"""``forebay savepoint`` and ``forebay state schema``."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import timedelta

import click
import pytest
from click.testing import CliRunner

from forebay_cli.installed import COMMANDS
from forebay_engine.versions import RestoreFrom
from forebay_state_api import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    StateTtlConfig,
)
from forebay_state_api.errors import ConfigurationError, CorruptStateError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.keys import key_group_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing import FunctionHarness
from forebay_testing.backends.operator_state import Kept, all_three, write_three
from forebay_testing.job import KeyedJob

FUNCTIONS = '''
"""Functions to be checked."""

from typing import Annotated

import attrs

from forebay_state_api import (
    Alias,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ValueStateDescriptor,
)


class Base(KeyedProcessFunction):
    states = ()

    def open(self, context):
        for one in self.states:
            context._declare(one)

    def process_element(self, row, ctx):
        return []


class Same(Base):
    states = (
        ValueStateDescriptor("total", float),
        MapStateDescriptor("seen", str, int),
        ValueStateDescriptor("more", int),
    )


@attrs.frozen
class Account:
    total: int
    owner: str


@attrs.frozen
class Balance:
    amount: int = 0
    owner: str = ""


@attrs.frozen
class Named(Balance):
    amount: Annotated[int, Alias("total")] = 0


class Before(KeyedBroadcastProcessFunction):
    account, rule = Account, Account

    def open(self, context):
        self.accounts = context.get_map_state(MapStateDescriptor("accounts", str, self.account))
        self.rules = context.get_broadcast_state(MapStateDescriptor("rules", str, self.rule))

    def process_element(self, row, ctx):
        self.accounts.put("x", Account(1, "ann"))

    def process_broadcast_element(self, row, ctx):
        self.rules.put("x", Account(1, "ann"))


class Dropping(Before):
    account = Balance


class DroppingRules(Before):
    rule = Balance


class Renaming(Before):
    account = rule = Named


class Other(Base):
    states = (ValueStateDescriptor("total", str), MapStateDescriptor("seen", int, int))


class Broken(Base):
    def open(self, context):
        raise RuntimeError("no network here")
'''


@pytest.fixture
def forebay(tmp_path):
    group = click.Group(commands={command.name: command for command in COMMANDS})

    def invoke(*arguments):
        given = [*map(str, arguments), "--state-dir", str(tmp_path)]
        return CliRunner().invoke(group, given)

    return invoke


@pytest.fixture
def job(tmp_path):
    """Return a function that makes jobs of two operators of query ``q``, on the heap backend."""

    def make(uid, query="q", **more):
        descriptors = [
            ValueStateDescriptor("total", int),
            MapStateDescriptor("seen", str, int),
            ListStateDescriptor("log", str),
        ]
        heap = plugins().backend("heap")
        place = open_storage(tmp_path)
        made = {"uid": uid, "query": query, "key_type": str, "parallelism": 2, **more}
        return KeyedJob(heap, place, descriptors=descriptors, **made)

    return make


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Write a module of functions to the working directory."""
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_functions", None)


def write(job, batches):
    for number in range(batches):
        job.do("a", ("total.update", number), ("seen.put", "x", 1), ("log.add", "y"))


@pytest.mark.long
def test_all_operators_are_kept_at_one_version(forebay, job):
    one, other = job("one"), job("other")
    write(one, 4)
    write(other, 3)
    made = forebay("savepoint", "create", "mine", "--query", "q")
    assert (made.exit_code, made.output.count("version 3")) == (0, 2)
    again = forebay("savepoint", "create", "mine", "--query", "q")
    assert isinstance(again.exception, ConfigurationError)
    listed = forebay("savepoint", "list")
    assert listed.output.count("mine") == 2
    fork = job("one", "fork", restore=RestoreFrom("q", savepoint="mine"))
    assert fork.do("a", ("total.value",)) == [2]
    listed = forebay("savepoint", "list", "--query", "q")
    assert listed.output.count("fork fork/one") == 1
    gone = forebay("savepoint", "delete", "mine", "--query", "q", "--uid", "other")
    assert (gone.exit_code, gone.output) == (0, "other: deleted mine\n")
    assert forebay("savepoint", "list").output.count("mine") == 1


class Rules(KeyedBroadcastProcessFunction):
    """Emits the rule of a row's key; a broadcast row sets one."""

    def open(self, context):
        self.rules = context.get_broadcast_state(MapStateDescriptor("rules", str, int))

    def process_element(self, row, ctx):
        yield row["key"], self.rules.get("x")

    def process_broadcast_element(self, row, ctx):
        self.rules.put("x", row["value"])


@pytest.mark.long
def test_a_savepoint_has_the_broadcast_state_of_its_version(forebay, tmp_path):
    shared = {"state_dir": tmp_path, "uid": "one"}
    with FunctionHarness(Rules(), "key", query="q", parallelism=2, **shared) as harness:
        harness.process([], [{"value": 1}])
        made = forebay("savepoint", "create", "mine", "--query", "q")
        assert made.exit_code == 0
        harness.process([], [{"value": 2}])
    restore = RestoreFrom("q", savepoint="mine")
    for query, restored, value in (("fork", restore, 1), ("late", RestoreFrom("q"), 2)):
        with FunctionHarness(
            Rules(), "key", query=query, restore_from=restored, parallelism=3, **shared
        ) as fork:
            assert fork.process([{"key": "a"}, {"key": "b"}]) == [("a", value), ("b", value)]


def test_what_is_made_of_a_savepoint_that_fails_is_undone(forebay, job):
    one, other = job("one"), job("other")
    write(one, 3)
    write(other, 3)
    files = other.storage.list("data")
    other.storage.delete([info.name for info in files])
    made = forebay("savepoint", "create", "mine", "--query", "q")
    assert isinstance(made.exception, CorruptStateError)
    assert one.storage.list("savepoints") == one.storage.list("pins") == []


def test_a_fork_that_was_deleted_by_hand_is_let_go(forebay, job):
    source = job("one")
    write(source, 3)
    fork = job("one", "fork", restore=RestoreFrom("q"))
    write(fork, 1)
    release = ("savepoint", "delete", "fork fork/one", "--query", "q")
    early = forebay(*release)
    assert "still exists" in str(early.exception)
    fork.storage.delete([info.name for info in fork.storage.list()])
    assert forebay(*release).exit_code == 0
    assert source.storage.list("pins") == []
    assert "is not held by" in str(forebay(*release).exception)


def test_nothing_to_keep(forebay, job):
    made = forebay("savepoint", "create", "mine", "--query", "q")
    assert "no such operator in" in str(made.exception)
    made = forebay("savepoint", "create", "mine", "--query", "q", "--uid", "one")
    assert "no state of operator 'one'" in str(made.exception)


SCHEMA = ("state", "schema", "--query", "q", "--uid", "one", "--provisional")
SKEW = ("state", "skew", "--query", "q", "--uid", "one", "--provisional")


def test_the_stored_description_is_printed(forebay, job):
    writer = job("one")
    write(writer, 2)
    result = forebay(*SCHEMA)
    assert result.exit_code == 0
    assert f"run {writer.run_key}, backend heap, max parallelism 8, key str\n" in result.output
    rows = [line.split() for line in result.output.splitlines()[2:]]
    assert rows == [
        ["log", "list", "str", "-"],
        ["seen", "map", "str", "→", "int", "|", "None", "-"],
        ["total", "value", "int", "-"],
    ]


def test_types_of_the_past_are_shown(forebay, job):
    writer = job("one")
    for declared in (int, float, float, float | None):
        writer.descriptors = [ValueStateDescriptor("total", declared)]
        writer.restart()
        writer.do("k", ("total.value",))
    result = forebay(*SCHEMA)
    assert "total was stored before as int, then float\n" in result.output
    (state,) = json.loads(forebay(*SCHEMA, "--json").output)["states"]
    assert (state["type"], state["before"]) == ("float | None", ["int", "float"])


class Alarm(KeyedProcessFunction):
    """Has a timer for each key, and no state."""

    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(seconds=60))

    def on_timer(self, at, ctx):
        pass


def test_the_keys_of_timers_have_a_type_without_any_state(forebay, job):
    job("one").run(Alarm(), [("a",)])
    assert "key str\n" in forebay(*SCHEMA).output
    refused = forebay(*SCHEMA, "--key", "int")
    assert refused.exit_code == 1
    assert "the key was stored as str" in refused.output


def test_a_uid_that_is_mistyped(forebay, job):
    write(job("one"), 1)
    write(job("two"), 1)
    result = forebay("state", "schema", "--query", "q", "--uid", "jion")
    assert result.exit_code != 0
    assert "no state of operator 'jion' is stored in " in str(result.exception)
    assert "query 'q' has state of 'one', 'two'" in str(result.exception)
    result = forebay("state", "schema", "--query", "p", "--uid", "one")
    assert "nothing is stored of query 'p'; there are 'q' ('one', 'two')" in str(result.exception)


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("module", "says"),
    [("raise RuntimeError('no')", "RuntimeError"), ("def (", "SyntaxError"), ("\n1 / 0", "line 2")],
)
def test_a_module_that_raises(forebay, job, tmp_path, module, says):
    write(job("one"), 2)
    (tmp_path / "raises.py").write_text(module)
    result = forebay(*SCHEMA, "--function", "raises:Same")
    assert isinstance(result.exception, ConfigurationError)
    assert says in str(result.exception)


@pytest.mark.usefixtures("functions")
def test_a_function_that_fits(forebay, job):
    write(job("one"), 2)
    result = forebay(*SCHEMA, "--function", "my_functions:Same", "--key", "user string")
    assert result.exit_code == 0
    rows = {line.split()[0]: " ".join(line.split()) for line in result.output.splitlines()}
    assert rows["total"].endswith("compatible")
    assert rows["seen"].endswith("compatible")
    assert rows["log"].endswith("not declared: kept, unread")
    assert rows["more"].endswith("new")


@pytest.mark.usefixtures("functions")
def test_every_state_that_does_not_fit_is_named(forebay, job):
    before = job("one")
    write(before, 2)
    stored = before.storage.list()
    result = forebay(*SCHEMA, "--function", "my_functions:Other", "--key", "long")
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith("NOT COMPATIBLE")]
    text = "\n".join(lines)
    assert len(lines) == 3
    assert "state 'total', value: stored as int, declared as str" in text
    assert "state 'seen', user key: stored as str, declared as int" in text
    assert "the key was stored as str, and 'long' is int" in text
    assert before.storage.list() == stored


DROPS = [("total", "dropped", None), ("amount", "added", None)]


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("function", "status", "states", "changes"),
    [
        ("Before", 0, {}, []),
        ("Dropping", 3, {"accounts": "drops"}, DROPS),
        ("DroppingRules", 3, {"rules": "drops"}, DROPS),
        ("Renaming", 0, {}, [("amount", "renamed", "total")] * 2),
        ("Other", 0, {}, []),
    ],
)
def test_fields_that_a_start_would_drop(
    forebay, tmp_path, monkeypatch, function, status, states, changes
):
    monkeypatch.syspath_prepend(tmp_path)
    written = importlib.import_module("my_functions").Before()
    with FunctionHarness(written, "key", query="q", uid="one", state_dir=tmp_path) as harness:
        harness.process([{"key": "a"}], [{"key": "rule"}])
    checked = (*SCHEMA, "--function", f"my_functions:{function}")
    result = forebay(*checked)
    assert result.exit_code == status
    shown = {line.split()[0]: line.split()[-1] for line in result.output.splitlines()}
    assert {name: shown[name] for name in states} == states
    lines = [line for line in result.output.splitlines() if line.startswith("DROPS")]
    assert len(lines) == len(states)
    for name, line in zip(states, lines, strict=True):
        assert f"state '{name}', field total: its stored values are lost; if it is now " in line
        assert "amount, declare that with Alias('total')" in line
    plain = json.loads(forebay(*checked, "--json").output)
    found = [(one["field"], one["change"], one["former"]) for one in plain["changes"]]
    assert found == changes


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_functions", "takes module:name"),
        ("my_functions:Nobody", "no attribute 'Nobody'"),
        ("nowhere:Same", "No module named 'nowhere'"),
        ("my_functions:Broken", "no network here"),
    ],
)
def test_a_function_that_cannot_be_checked(forebay, job, path, message):
    write(job("one"), 1)
    result = forebay(*SCHEMA, "--function", path)
    assert message in str(result.exception)


def test_operator_state_is_described_too(forebay, job):
    two = job("one")
    two.run(Kept(all_three, write_three), [])
    result = forebay(*SCHEMA)
    assert "operator split" in result.output
    assert "operator union" in result.output
    assert "operator broadcast" in result.output


def test_skew_is_the_largest_share_over_the_mean(forebay, job):
    uneven = job("one", parallelism=4)
    groups = {0: 1, 1: 1, 2: 2, 3: 8}
    keys = {number: [] for number in groups}
    for key in map(str, range(1000)):
        keys[key_group_of(key, 8) // 2].append(key)
    chosen = [key for number, count in groups.items() for key in keys[number][:count]]
    uneven.scripts([(key, [("total.update", 1)]) for key in chosen])
    result = forebay(*SKEW)
    rows = [line.split() for line in result.output.splitlines()[2:6]]
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [
        ("0", "0..1", "1", "0.33"),
        ("1", "2..3", "1", "0.33"),
        ("2", "4..5", "2", "0.67"),
        ("3", "6..7", "8", "2.67"),
    ]
    assert "skew 2.67" in result.output
    uneven.restart(parallelism=1)
    uneven.do("another", ("total.update", 1))
    result = forebay(*SKEW)
    assert "skew 1.00" in result.output


def test_files_that_several_subtasks_read_count_for_their_part(forebay, job):
    before = job("one", parallelism=1)
    write(before, 1)
    before.restart(parallelism=8)
    before.do("b", ("total.value",))
    (size,) = [info.size for info in before.storage.list("data")]
    result = forebay(*SKEW)
    rows = [line.split() for line in result.output.splitlines()[2:10]]
    assert [int(row[3].replace(",", "")) for row in rows] == [round(size / 8)] * 8


LONG = "306f20b6-7e79-41eb-b1e3-2c2f4a1d9d10"


def test_ids_are_whole_in_pipes_and_as_json(forebay, job, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    write(job("one", LONG), 1)
    assert json.loads(forebay("savepoint", "create", "mine", "--query", LONG, "--json").output)
    write(job("one", f"{LONG}-fork", restore=RestoreFrom(LONG)), 1)
    listed = forebay("savepoint", "list").output
    assert listed.count(LONG) == 3
    assert f"fork {LONG}-fork/one" in listed
    found = json.loads(forebay("savepoint", "list", "--json").output)
    assert [one["savepoint"] for one in found] == ["mine", f"fork {LONG}-fork/one"]
    assert found[0] | {"made": None} == {
        "query": LONG,
        "uid": "one",
        "savepoint": "mine",
        "version": 1,
        "backend": "heap",
        "bytes": found[0]["bytes"],
        "made": None,
    }
    gone = forebay("savepoint", "delete", "mine", "--query", LONG, "--json")
    assert json.loads(gone.output) == [{"query": LONG, "uid": "one", "savepoint": "mine"}]


def test_a_directory_without_state_is_an_error(forebay, job):
    for arguments in ([], ["--query", "q"]):
        listed = forebay("savepoint", "list", *arguments)
        assert isinstance(listed.exception, ConfigurationError)
        assert "no such operator in" in str(listed.exception)
    write(job("one"), 1)
    assert forebay("savepoint", "list").exit_code == 0


def test_a_time_to_live_is_shown_with_its_duration(forebay, tmp_path):
    ttl = {
        "days": timedelta(days=7),
        "short": timedelta(milliseconds=1500),
        "hour": timedelta(hours=1),
    }
    states = [
        ValueStateDescriptor("none", int),
        *(ValueStateDescriptor(n, int, ttl=StateTtlConfig(t)) for n, t in ttl.items()),
    ]
    heap, place = plugins().backend("heap"), open_storage(tmp_path)
    job = KeyedJob(heap, place, descriptors=states, uid="one", query="q", key_type=str)
    job.do("a", ("days.update", 1))
    rows = {line.split()[0]: line.split()[-1] for line in forebay(*SCHEMA).output.splitlines()}
    assert {name: rows[name] for name in ("none", *ttl)} == {
        "none": "-",
        "days": "7d",
        "short": "1500ms",
        "hour": "1h",
    }
    plain = json.loads(forebay(*SCHEMA, "--json").output)
    assert (plain["version"], plain["key"]) == (1, "str")
    known = {one["name"]: (one["ttl"], one["ttl_us"]) for one in plain["states"]}
    assert known["hour"] == (True, 3_600_000_000)
    assert known["none"] == (False, None)
    skew = json.loads(forebay(*SKEW, "--json").output)
    assert [one["cells"] for one in skew["subtasks"]] == [1]


def test_timers_are_no_states(forebay, tmp_path):
    class Timed(KeyedProcessFunction):
        def process_element(self, row, ctx):
            ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(days=1))
            return []

        def on_timer(self, at, ctx):
            return []

    heap, place = plugins().backend("heap"), open_storage(tmp_path)
    KeyedJob(heap, place, uid="one", query="q", key_type=str).run(Timed(), [("a",)])
    assert "__timer" not in forebay(*SCHEMA).output
    assert json.loads(forebay(*SCHEMA, "--json").output)["states"] == []
