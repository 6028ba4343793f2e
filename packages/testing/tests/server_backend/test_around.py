"""Uses of state in a server, besides batches: commands, conversions, secrets, clearing."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_engine.versions import OperatorStorage, open_version, operator_folder
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import Plugins
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage.opening import open_storage
from forebay_testing import FunctionHarness
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend

from .server_backend import Server, ServerBackend, anchor_of

SECRET = "pass-word"
COUNT = ValueStateDescriptor("n", int, default=0)


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield ctx.current_key, self.n.value()


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """Install the server's backend and the kit's reference, in place of all others."""
    backends = {one.name: one for one in (ServerBackend, ReferenceBackend)}
    monkeypatch.setattr(Plugins, "backends", lambda _: backends)
    monkeypatch.setattr(Plugins, "backend", lambda _, name: backends[name])
    yield
    ServerBackend.forget()


@pytest.fixture
def dsn(tmp_path):
    return str(tmp_path / f"{SECRET}.sqlite")


@pytest.fixture
def conf(dsn):
    return [
        "--conf",
        f"spark.forebay.server.dsn={dsn}",
        "--conf",
        "spark.forebay.state.backend=server",
    ]


@pytest.fixture
def stored(tmp_path, dsn):
    """Twelve versions of two subtasks in a state directory."""
    root = tmp_path / "state"
    job = KeyedJob(
        ServerBackend,
        open_storage(root),
        descriptors=[COUNT],
        options={"dsn": dsn, "deltas": 3},
        parallelism=2,
        query="q",
        uid="count",
    )
    for number in range(12):
        job.scripts([(key, [("n.update", number)]) for key in "abcdefgh"])
    return root


def forebay(*arguments):
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output
    return result.output


def test_its_address_is_a_secret(conf, dsn):
    rows = json.loads(forebay("config", "--json", *conf))
    assert [row["value"] for row in rows if row["key"] == "spark.forebay.server.dsn"] == ["***"]
    settings = resolve_settings(
        {"spark.forebay.server.dsn": dsn}, backends={"server": ServerBackend}
    )
    assert settings.options_of("server")["dsn"] == dsn
    assert SECRET not in repr(settings)


def test_sizes_are_those_of_the_rows(stored, conf, dsn):
    there = ["--state-dir", stored, "--query", "q", *conf, "--json"]
    forebay("savepoint", "create", "kept", *there)
    (saved,) = json.loads(forebay("savepoint", "list", *there))
    skew = json.loads(forebay("state", "skew", *there, "--uid", "count", "--provisional"))
    storage = OperatorStorage(open_storage(stored), operator_folder("q", "count"))
    with open_version(storage, uid="count") as reader:
        files = [file for manifest in reader.manifests for file in manifest.files]
    query = "SELECT sum(length(data)) FROM cells WHERE anchor = ?"
    rows = [Server({"dsn": dsn}).run((query, (anchor_of(file.name),)))[0][0] for file in files]
    assert len(skew["subtasks"]) == 2
    assert sum(share["bytes"] for share in skew["subtasks"]) == saved["bytes"]
    assert saved["bytes"] == sum(rows) + sum(file.size for file in files)


@pytest.mark.long
def test_a_function_is_checked_against_it(stored, conf, monkeypatch, tmp_path):
    (tmp_path / "job.py").write_text(
        "from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor\n"
        "class Count(KeyedProcessFunction):\n"
        "    def open(self, context):\n"
        "        context.get_state(ValueStateDescriptor('n', int, default=0))\n"
        "    def process_element(self, row, ctx): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    there = ["--state-dir", stored, "--query", "q", "--uid", "count", *conf]
    assert "compatible" in forebay("state", "schema", *there, "--function", "job:Count")


@pytest.mark.long
def test_a_function_goes_on_from_it_on_another_backend(stored, dsn):
    with FunctionHarness(
        Count(),
        lambda row: row,
        backend="reference",
        backend_options={"server.dsn": dsn},
        state_dir=stored,
        query="other",
        uid="count",
        restore_from="q",
        max_parallelism=8,
    ) as harness:
        assert harness.state(COUNT, "a") == 11
        assert harness.process(["a"]) == [("a", 12)]


@pytest.mark.long
def test_without_its_address_the_error_names_the_setting(stored):
    with (
        pytest.raises(ConfigurationError, match=r"spark\.forebay\.server\.dsn is not set"),
        FunctionHarness(
            Count(),
            lambda row: row,
            backend="reference",
            state_dir=stored,
            query="other",
            uid="count",
            restore_from="q",
            max_parallelism=8,
        ) as harness,
    ):
        harness.process(["a"])


@pytest.mark.long
def test_the_command_clears_rows_of_versions_that_nobody_can_open(stored, conf, dsn):
    def anchors():
        return {row[0] for row in Server({"dsn": dsn}).run(("SELECT anchor FROM cells", ()))}

    before = anchors()
    there = ["--state-dir", stored, "--query", "q", "--uid", "count", *conf]
    sweep = ["janitor", *there, "--retention", "1", "--min-age", "0s"]
    forebay(*sweep, "--dry-run")
    assert anchors() == before
    forebay(*sweep)
    forebay(*sweep)  # files outlive the manifests that named them by one pass
    files = {file.name for file in stored.rglob("data/*/*") if file.is_file()}
    assert anchors() <= files
    assert anchors() < before
