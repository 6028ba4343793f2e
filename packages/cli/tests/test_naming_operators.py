"""How a command finds the operator that it is about: by its names, or because it is alone."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing.job import KeyedJob

pytestmark = pytest.mark.long

OF_ONE = {
    "get": ("state", "get", "a", "--provisional"),
    "history": ("state", "history", "a", "--provisional"),
    "scan": ("state", "scan", "--provisional"),
    "diff": ("state", "diff", "--from", "0", "--provisional"),
    "schema": ("state", "schema", "--provisional"),
    "skew": ("state", "skew", "--provisional"),
    "explain": ("explain",),
    "recover": ("recover",),
    "janitor": ("janitor", "--dry-run"),
}
"""The commands that are about one operator."""


@pytest.fixture
def store(tmp_path):
    """Store an operator of a name."""

    def write(query, uid):
        storage = open_storage(tmp_path)
        descriptors = [ValueStateDescriptor("count", int)]
        heap = plugins().backend("heap")
        job = KeyedJob(
            heap,
            storage,
            descriptors=descriptors,
            query=query,
            uid=uid,
            parallelism=1,
            key_type=str,
        )
        job.do("a", ("count.update", 1))

    return write


@pytest.fixture
def forebay(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, [*arguments, "--state-dir", str(tmp_path)])

    return run


def refused(result):
    """Return the error of a command, in one line."""
    assert result.exit_code == 2
    return " ".join(result.output.split())


@pytest.mark.parametrize("command", OF_ONE.values(), ids=OF_ONE)
def test_the_only_operator_needs_no_name(forebay, store, command):
    store("q", "one")
    result = forebay(*command)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", OF_ONE.values(), ids=OF_ONE)
def test_of_several_operators_one_is_named(forebay, store, command):
    store("q", "one")
    store("q", "two")
    error = refused(forebay(*command))
    assert "has 2 such operators: choose one by --query and --uid: " in error
    assert error.endswith("--query q --uid one; --query q --uid two")
    assert forebay(*command, "--uid", "two").exit_code == 0


@pytest.mark.parametrize("command", OF_ONE.values(), ids=OF_ONE)
def test_a_name_that_nothing_is_stored_under(forebay, store, tmp_path, command):
    store("q", "one")
    missing = refused(forebay(*command, "--uid", "oen"))
    assert f"no such operator in {tmp_path}: there are 'q' ('one'); did you mean" in missing
    empty = refused(forebay(*command, "--query", "q", "--uid", "oen"))
    said = f"no state of operator 'oen' is stored in {tmp_path}/q/oen: query 'q' has state of 'one'"
    assert said in empty


def test_the_only_query_of_savepoints_needs_no_name(forebay, store):
    store("q", "one")
    store("q", "two")
    (one, two) = json.loads(forebay("savepoint", "create", "mine", "--json").output)
    assert [one["uid"], two["uid"]] == ["one", "two"]
    assert forebay("savepoint", "delete", "mine", "--uid", "two").exit_code == 0
    (left,) = json.loads(forebay("savepoint", "list", "--json").output)
    assert left["uid"] == "one"
    store("p", "one")
    for command in ("create", "delete"):
        error = refused(forebay("savepoint", command, "mine"))
        assert error.endswith("has 2 queries: choose one: --query p; --query q")
