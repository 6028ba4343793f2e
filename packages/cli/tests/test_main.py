"""The command line: its output and its errors."""

from __future__ import annotations

import copy
import errno
import json
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from forebay_cli import main, plugins_and_config
from forebay_cli import plugin as cli_plugin
from forebay_cli.lazy import LazyCommand
from forebay_cli.live import bundle
from forebay_cli.upkeep import janitor_and_doctor
from forebay_engine import configuring
from forebay_engine import plugin as engine_plugin
from forebay_state_api import builtin_plugin
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.errors import StorageError
from forebay_state_api.plugins import Plugins, hookimpl
from forebay_state_api.plugins.sources import Origin, PluginSource
from forebay_state_api.settings import BYTES, Setting
from forebay_state_api.storage.opening import open_storage
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend


@click.command("fail")
def fail() -> None:
    message = "bucket 'x'\nis gone"
    raise StorageError(message)


def toy_plugin(command: click.Command = fail) -> ModuleType:
    options = {"memory-bytes": Setting("memory-bytes", BYTES, "64m", "Size of a table.")}
    own = {"name": "heap", "contract_version": CONTRACT_VERSION, "options": options}
    backend = type("Heap", (ReferenceBackend,), own)
    plugin = ModuleType("toy")
    vars(plugin)["forebay_commands"] = hookimpl(lambda: command)
    vars(plugin)["forebay_state_backends"] = hookimpl(lambda: backend)
    return plugin


def register_ours(found: Plugins) -> None:
    found.register(builtin_plugin, "forebay-state-api")
    found.register(engine_plugin, "forebay-engine")
    found.register(cli_plugin, "forebay-cli")


def use(found: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (main, plugins_and_config, configuring, janitor_and_doctor, bundle):
        monkeypatch.setattr(module, "plugins", lambda: found)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    found = Plugins(tuple)
    register_ours(found)
    found.register(toy_plugin(), "toy")
    use(found, monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    return found


@pytest.fixture
def run(found: Plugins) -> Any:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main.main, arguments)

    return invoke


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOSPC])
def test_an_error_of_the_operating_system_is_one_line(
    run: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused() -> None:
        raise OSError(number, os.strerror(number), "/state/x")

    monkeypatch.setattr(fail, "callback", refused)
    result = run("fail")
    assert (result.exit_code, result.stderr) == (
        2,
        f"Error: [Errno {number}] {os.strerror(number)}: '/state/x'\n",
    )


def test_help_lists_what_plugins_bring(run: Any) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in ("config", "plugins", "fail"):
        assert f"\n  {name}" in result.output


def test_plugins(run: Any) -> None:
    result = run("plugins")
    assert result.exit_code == 0
    provided = [row.split("\t")[3] for row in result.output.splitlines()]
    assert "compaction service: local" in provided
    assert "state backend: heap" in provided
    (heap,) = [row for row in result.output.splitlines() if "state backend: heap" in row]
    assert heap.split("\t")[2] == str(CONTRACT_VERSION)


def test_config_shows_values_and_where_they_come_from(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text(
        "# a comment\n\nspark.master local[2]\nspark.forebay.batch-size  7\n"
        "spark.forebay.page-size=9\nspark.forebay.state.dir: s3://bucket/state\n"
    )
    result = run("config", "--properties-file", str(file), "--conf", "spark.forebay.page-size=11")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split() for line in result.output.splitlines()}
    assert rows["spark.forebay.batch-size"][1:3] == ["7", "configuration"]
    assert rows["spark.forebay.page-size"][1:3] == ["11", "configuration"]
    assert rows["spark.forebay.state.dir"][1] == "s3://bucket/state"
    assert rows["spark.forebay.heap.memory-bytes"][1:3] == ["64m", "default"]


def test_what_is_installed_and_in_force_as_json(run: Any) -> None:
    found = {row["plugin"]: row for row in json.loads(run("plugins", "--json").output)}
    assert found["forebay-engine"]["offers"]["compaction service"] == ["local"]
    assert found["forebay-engine"]["contract_versions"] == [CONTRACT_VERSION]
    setting = "spark.forebay.batch-size"
    rows = json.loads(run("config", "--json", "--conf", f"{setting}=7").output)
    assert [r["value"] for r in rows if r["key"] == setting] == ["7"]


def test_nothing_is_cut_where_there_is_no_terminal(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    place = f"s3://bucket/{'long/' * 30}"
    assert place.rstrip("/") in run("config", "--conf", f"spark.forebay.state.dir={place}").stdout


def test_settings_without_any_backend_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Plugins(tuple)
    register_ours(alone)
    use(alone, monkeypatch)
    result = CliRunner().invoke(main.main, ["config"])
    assert result.exit_code == 0
    assert "spark.forebay.state.backend" in result.stdout
    assert "no state backend 'heap'" in result.output
    assert "pip install forebay-backend-heap" in result.output
    chosen = CliRunner().invoke(main.main, ["config", "--conf", "spark.forebay.state.backend=heap"])
    assert chosen.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fail"], "Error: bucket 'x' is gone"),
        (["config", "--conf", "spark.forebay.batchsize=1"], "mean spark.forebay.batch-size?"),
        (["config", "--conf", "spark.forebay.batch-size=x"], "expected a whole number"),
        (["config", "--conf", "spark.forebay.state.backend=lsm"], "forebay-backend-lsm"),
        (["config", "--conf", "spark.forebay.compaction.service=ray"], "forebay-compaction-ray"),
    ],
)
def test_an_error_is_one_line_and_status_two(run: Any, arguments: list[str], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert line in result.output
    assert len(result.output.splitlines()) == 1


# -- broken plugins -------------------------------------------------------------------------------


class BrokenEntry:
    """An entry point whose module cannot be imported."""

    name, value = "acme", "acme_forebay.plugin"
    dist = SimpleNamespace(name="acme", version="1.2")

    def load(self) -> object:
        raise ImportError("no module lost")


@pytest.fixture
def run_with_broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run commands with the plugin of `BrokenEntry`, and two plugins of equal names."""
    found = Plugins(lambda: [BrokenEntry()])
    register_ours(found)
    found.register(toy_plugin(), "toy")
    found.register(toy_plugin(copy.copy(fail)), "copy-of-toy")
    use(found, monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(main.main, arguments)


def test_help_lists_what_works_and_names_what_is_broken(run_with_broken: Any) -> None:
    result = run_with_broken("--help")
    assert result.exit_code == 0
    assert "\n  config" in result.output
    assert "\n  fail" not in result.output
    assert "Broken: acme, copy-of-toy, toy; see forebay plugins." in result.output


def test_other_commands_run_with_broken_plugins(run_with_broken: Any, tmp_path: Path) -> None:
    assert run_with_broken("config").exit_code == 0
    assert run_with_broken("janitor", "--help").exit_code == 0
    result = run_with_broken("savepoint", "list", "--state-dir", str(tmp_path))
    assert "no such operator in" in result.output


def test_plugins_shows_what_is_broken(run_with_broken: Any) -> None:
    result = run_with_broken("plugins")
    assert result.exit_code == 1
    assert "compaction service: local" in result.output
    assert "BROKEN: plugin 'acme' of acme 1.2 cannot be imported (acme_forebay" in result.output
    assert "BROKEN: two plugins provide a command 'fail': toy and copy-of-toy" in result.output
    rows = {row["plugin"]: row for row in json.loads(run_with_broken("plugins", "--json").output)}
    assert "no module lost" in rows["acme"]["problems"][0]
    assert rows["forebay-state-api"]["problems"] == []


def test_doctor_has_a_row_for_each_plugin(run_with_broken: Any, tmp_path: Path) -> None:
    result = run_with_broken("doctor", "--state-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "ok   all of the plugin 'forebay-state-api' of forebay-state-api" in result.output
    assert "BAD  all of the plugin 'acme' of acme can be used: plugin 'acme' of" in result.output
    assert "ok   a get gives back what was put" in result.output


@pytest.mark.usefixtures("run_with_broken")
def test_a_bundle_has_the_number_of_problems_and_no_texts() -> None:
    made = bundle._versions()
    assert made["plugins"]["acme"]["problems"] == 1
    assert made["plugins"]["forebay-state-api"]["problems"] == 0
    assert "lost" not in json.dumps(made)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fail"], "'fail': toy and copy-of-toy"),
        (["acme"], "no module lost"),
        (["nothing"], "no command 'nothing'"),
        (["nothing"], "no module lost"),
        (["config", "--conf", "spark.forebay.state.backend=acme"], "no module lost"),
        (["config", "--conf", "spark.forebay.state.backend=heap"], "'heap': toy and copy-of-toy"),
        (["config", "--conf", "spark.forebay.acme.size=1"], "no module lost"),
    ],
)
def test_who_asks_for_what_is_broken_gets_one_line(
    run_with_broken: Any, arguments: list[str], line: str
) -> None:
    result = run_with_broken(*arguments)
    assert result.exit_code == 2
    assert line in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("target", ["lost_forebay:command", "json:command"])
def test_a_lazy_command_that_cannot_be_imported_is_one_line(
    run: Any, found: Plugins, target: str
) -> None:
    plugin = ModuleType("acme")
    vars(plugin)["forebay_commands"] = hookimpl(lambda: LazyCommand("acme", target, "Acme."))
    found.register(plugin, "acme")
    assert run("--help").exit_code == 0
    result = run("acme")
    assert result.exit_code == 2
    assert f"Error: the command 'acme' cannot be imported ({target}): " in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("is_broken", "code", "says"),
    [
        (False, 0, "the backend 'reference' is not installed here"),
        (True, 2, "no module lost"),
    ],
)
def test_the_janitor_knows_a_broken_backend_from_an_absent_one(
    run: Any, found: Plugins, tmp_path: Path, *, is_broken: bool, code: int, says: str
) -> None:
    job = KeyedJob(ReferenceBackend, open_storage(tmp_path), key_type=str)
    job.run(lambda row, ctx: [row], [("a",)])
    if is_broken:
        broken = PluginSource(Origin("reference", "acme", "1"), BrokenEntry().load, "acme")
        found._by_key()["acme"] = broken
    result = run("janitor", "--state-dir", str(tmp_path), "--query", "query", "--uid", "operator")
    assert (result.exit_code, says in result.output) == (code, True), result.output


def test_wrong_usage(run: Any, tmp_path: Path) -> None:
    assert run("nothing").exit_code == 2
    assert "expected key=value" in run("config", "--conf", "x").output
    file = tmp_path / "spark-defaults.conf"
    file.write_text("alone\n")
    assert "line 1: expected a key" in run("config", "--properties-file", str(file)).output
    file.write_bytes(b"\xff\xfe")
    result = run("config", "--properties-file", str(file))
    assert (result.exit_code, "is no file of properties" in result.output) == (2, True)
