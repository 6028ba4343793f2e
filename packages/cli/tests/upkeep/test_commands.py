"""``forebay janitor`` and ``forebay doctor``."""

import contextlib
import json
from typing import ClassVar
from uuid import uuid4

import click
import pytest
from click.testing import CliRunner

from forebay_backend_heap.backend import HeapBackend
from forebay_cli.installed import COMMANDS
from forebay_cli.options import state_directory
from forebay_cli.upkeep import janitor_and_doctor, savepoint
from forebay_engine.versions import operator_folder
from forebay_engine.versions.cleaning import storage_probe
from forebay_engine.versions.cleaning.storage_probe import examine
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.progress import Progress
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob
from forebay_testing.storage import Fault, FaultKind, FaultyStorage, WrappedStorage


@pytest.fixture
def forebay():
    group = click.Group(commands={command.name: command for command in COMMANDS})

    def invoke(*arguments):
        return CliRunner().invoke(group, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def stored(tmp_path):
    storage = open_storage(tmp_path)
    count = ValueStateDescriptor("count", int)
    job = KeyedJob(HeapBackend, storage, descriptors=[count], query="q/1", uid="op")
    for number in range(10):
        job.do("k", ("count.update", number))
    return storage.child(operator_folder("q/1", "op"))


OPERATOR = ("--query", "q/1", "--uid", "op", "--retention", 2)


def test_janitor_deletes_old_versions(forebay, stored, tmp_path):
    dry = forebay("janitor", "--state-dir", tmp_path, *OPERATOR, "--min-age", "0s", "--dry-run")
    assert "would delete 14 object(s); versions from 8 on stay" in dry.output
    assert len(stored.list_folders("versions")) == 10
    real = forebay("janitor", "--state-dir", tmp_path, *OPERATOR, "--min-age", "0s")
    assert (real.exit_code, "deleted 14 object(s)" in real.output) == (0, True)
    assert len(stored.list_folders("versions")) == 3


def test_janitor_spares_what_is_young_by_default(forebay, stored, tmp_path):
    result = forebay("janitor", "--state-dir", tmp_path, *OPERATOR)
    assert "deleted 0 object(s)" in result.output


def test_janitor_names_what_it_does_not_find(forebay, tmp_path):
    result = forebay("janitor", "--state-dir", tmp_path, "--query", "q", "--uid", "op")
    assert isinstance(result.exception, ConfigurationError)
    assert "no state of operator 'op'" in str(result.exception)


def test_janitor_refuses_an_age_that_is_none(forebay, tmp_path):
    result = forebay("janitor", "--state-dir", tmp_path, *OPERATOR, "--min-age", "old")
    assert (result.exit_code, "'old' is not a duration" in result.output) == (2, True)


def probes(output, beginning):
    """Return the lines about the storage, without those about plugins."""
    lines = [line for line in output.splitlines() if line.startswith(beginning)]
    return [line for line in lines if " of the plugin " not in line]


def test_doctor_finds_a_directory_healthy_and_leaves_it_clean(forebay, tmp_path):
    result = forebay("doctor", "--state-dir", tmp_path)
    assert (result.exit_code, len(probes(result.output, "ok  "))) == (0, 12)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_doctor_names_what_is_wrong(forebay, tmp_path, monkeypatch):
    def no_ranges(folder):
        raise StorageError("ranges are not served here")

    monkeypatch.setitem(storage_probe.PROBES, "ranges can be read", no_ranges)
    result = forebay("doctor", "--state-dir", tmp_path)
    assert (result.exit_code, len(probes(result.output, "ok  "))) == (1, 11)
    assert "BAD  ranges can be read: ranges are not served here\n" in result.output
    findings = json.loads(forebay("doctor", "--state-dir", tmp_path, "--json").output)
    problems = [one["problem"] for one in findings if " of the plugin " not in one["promise"]]
    assert problems == ["", "ranges are not served here", *[""] * 10]


class RemembersMisses(WrappedStorage):
    """Answers a get for an object that it has once missed as it did then."""

    missed: ClassVar[set[str]] = set()

    def get(self, name):
        if self._above + name in self.missed:
            raise self.absent(name)
        try:
            return super().get(name)
        except ObjectNotFoundError:
            self.missed.add(self._above + name)
            raise


def test_a_store_that_remembers_misses_is_found():
    findings = examine(RemembersMisses(MemoryStorage(f"memory://{uuid4()}")))
    problems = {one.promise: one.problem for one in findings if one.problem}
    assert list(problems) == ["a get after a put finds it, whatever was asked before"]
    assert "a get before it had missed it" in next(iter(problems.values()))


def test_a_storage_that_takes_nothing_is_asked_once(forebay, tmp_path, monkeypatch):
    asked = []

    class Unreachable(FaultyStorage):
        def child(self, prefix):
            return self

        def put(self, name, data):
            asked.append(name)
            raise StorageError("no way there")

    inner = open_storage(tmp_path)
    monkeypatch.setattr(state_directory, "open_storage", lambda *_: Unreachable(inner))
    result = forebay("doctor", "--state-dir", tmp_path)
    assert (result.exit_code, result.output.count("no way there"), len(asked)) == (1, 1, 1)
    assert result.output.endswith("nothing else was probed\n")


@pytest.mark.parametrize(
    "command",
    [
        ["doctor"],
        ["janitor", *OPERATOR],
        ["savepoint", "list"],
        ["savepoint", "create", "x", "--query", "q"],
    ],
)
def test_a_mistyped_directory_is_an_error_and_is_not_made(forebay, tmp_path, command):
    missing = tmp_path / "nonexistent" / "x"
    result = forebay(*command, "--state-dir", missing)
    assert isinstance(result.exception, ConfigurationError)
    assert f"there is no directory {missing}: check the spelling" in str(result.exception)
    assert not missing.parent.exists()


class Noted(Progress):
    """Notes the stages that some work reports, and their steps."""

    def __init__(self):
        self.stages = []

    def stage(self, doing, total=None):
        self.stages.append([doing, total, 0])

    def advance(self, steps=1):
        self.stages[-1][2] += steps


def test_long_commands_report_their_progress(forebay, stored, tmp_path, monkeypatch):
    found = {}

    @contextlib.contextmanager
    def noted(name):
        found[name] = Noted()
        yield found[name]

    for module in (janitor_and_doctor, savepoint):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "shown_progress", lambda name=name: noted(name))
    where = ("--state-dir", tmp_path, "--query", "q/1")
    forebay("savepoint", "create", "kept", *where)
    forebay("janitor", "--state-dir", tmp_path, *OPERATOR, "--min-age", "0s")
    assert found["savepoint"].stages == [["reading manifests", 1, 1], ["checking files", None, 0]]
    reading, *deleting = found["janitor_and_doctor"].stages
    assert reading == ["reading manifests", 1, 1]
    assert sum(done for doing, _, done in deleting if doing == "deleting") == 14
    assert all(done == total for _, total, done in deleting)


def test_janitor_as_json(forebay, stored, tmp_path):
    dry = forebay(
        "janitor", "--state-dir", tmp_path, *OPERATOR, "--min-age", "0s", "--dry-run", "--json"
    )
    plain = json.loads(dry.output)
    assert (plain["base"], len(plain["names"]), plain["dry_run"]) == (8, 14, True)


def test_each_promise_is_probed():
    inner = MemoryStorage(f"memory://{uuid4()}")

    class Broken(FaultyStorage):
        def put_if_absent(self, name, data):
            self.put(name, data)
            return True

        def list(self, prefix=""):
            return super().list(prefix)[1:]

    broken = Broken(inner, Fault(kind=FaultKind.ALTERED, count=None))
    problems = [finding.problem for finding in examine(broken)]
    assert all(problems[:4])
    assert "8 of 8 rivals won" in problems[3]


def test_storage_settings_reach_the_storage(forebay, tmp_path):
    setting = ("--conf", "spark.forebay.storage.aws_region=eu-north-1")
    found = forebay("doctor", "--state-dir", tmp_path, *setting)
    assert isinstance(found.exception, ConfigurationError)
    assert "takes no options, but was given aws_region" in str(found.exception)
