"""``forebay recover`` on the installed backends: its output, and the effect of a choice."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from forebay_cli.upkeep.recover import recover as command
from forebay_engine.versions import Checkpoint
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing.job import KeyedJob

OPERATOR = ("--query", "q", "--uid", "op")


class Adding(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, row, ctx):
        key, number = row
        self.sum.update(self.sum.value() + number)
        yield key, self.sum.value()


@pytest.fixture(params=["heap", "lsm"])
def job(request, tmp_path):
    return KeyedJob(
        plugins().backend(request.param),
        open_storage(tmp_path),
        query="q",
        uid="op",
        parallelism=2,
        key_type=str,
    )


@pytest.fixture
def split(job):
    """Make three versions, and another third version after the checkpoint went back."""
    job.run(Adding(), [("a", 1), ("b", 1), ("c", 1)])
    job.run(Adding(), [("a", 1)])
    home = job.run_key
    job.run(Adding(), [("b", 5)])
    job.checkpoint = Checkpoint(location="file:/copy", times_ms={})
    job.restart(batch_id=1)
    job.run(Adding(), [("a", 7)])
    job.checkpoint = None
    return home, job.run_key


@pytest.fixture
def recover(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(command, ["--state-dir", str(tmp_path), *OPERATOR, *arguments])

    return run


@pytest.mark.long
def test_it_shows_who_made_them_when_and_how_many_keys_differ(recover, split):
    home, copy = split
    found = {one["run"]: one for one in json.loads(recover("--json").output)}
    assert list(found) == [copy, home]
    assert (found[copy]["version"], found[home]["version"]) == (2, 3)
    assert (found[copy]["since"], found[home]["since"]) == (1, 0)
    assert (found[copy]["checkpoint"], found[home]["checkpoint"]) == ("file:/copy", None)
    assert found[copy]["batch_time"] is not None
    assert found[copy]["made"] is not None
    assert (found[copy]["keys_differ"], found[home]["keys_differ"]) == (0, 2)
    shown = recover().output
    assert all(text in shown for text in (home, copy, "file:/copy", "--choose RUN"))


@pytest.mark.long
@pytest.mark.parametrize("choice", [0, 1])
def test_a_choice_continues_and_the_other_is_left_behind(recover, split, job, choice):
    chosen = split[choice]
    job.restart(batch_id=3 - choice)
    if choice == 0:
        with pytest.raises(ConfigurationError, match="forebay recover --state-dir"):
            job.run(Adding(), [("a", 1)])
    said = recover("--choose", chosen)
    assert (said.exit_code, "continues" in said.output) == (0, True)
    found = {one["run"]: one["left_behind"] for one in json.loads(recover("--json").output)}
    assert found == {run: run != chosen for run in split}
    job.restart(batch_id=3 - choice)
    expected = [[("a", 2), ("b", 6)], [("a", 8), ("b", 1)]][choice]
    assert sorted(job.run(Adding(), [("a", 0), ("b", 0)])) == expected


def test_what_is_not_there_is_named(recover, split):
    result = recover("--choose", "0" * 16)
    assert isinstance(result.exception, ConfigurationError)
    assert split[0] in str(result.exception)
    assert split[1] in str(result.exception)


def test_one_timeline_needs_no_choice(recover, job):
    job.run(Adding(), [("a", 1)])
    assert "--choose" not in recover().output


def test_an_operator_without_versions(recover, tmp_path):
    (tmp_path / "q").mkdir()
    assert "no state of operator 'op'" in str(recover().exception)
