"""State goes on only under the key columns that it is kept under, on every backend."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import (
    ConfigurationError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StateMigrationError,
    ValueStateDescriptor,
)
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.versions import OperatorStorage, open_version


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
