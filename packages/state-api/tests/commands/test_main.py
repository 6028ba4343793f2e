"""The command line: its output and its errors."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from forebay_state_api import builtin_plugin
from forebay_state_api.commands import (
    conf_options,
    main,
    plugins_and_config,
)
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.errors import StorageError
from forebay_state_api.plugins import Plugins, hookimpl
from forebay_state_api.settings import BYTES, Setting


@click.command("fail")
def fail() -> None:
    message = "bucket 'x'\nis gone"
    raise StorageError(message)


def toy_plugin() -> ModuleType:
    options = {"memory-bytes": Setting("memory-bytes", BYTES, "64m", "Size of a table.")}
    backend = SimpleNamespace(name="heap", contract_version=CONTRACT_VERSION, options=options)
    plugin = ModuleType("toy")
    vars(plugin)["forebay_commands"] = hookimpl(lambda: fail)
    vars(plugin)["forebay_state_backends"] = hookimpl(lambda: backend)
    return plugin


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    found = Plugins(tuple)
    found.register(builtin_plugin, "forebay-state-api")
    found.register(toy_plugin(), "toy")
    for module in (main, plugins_and_config, conf_options):
        monkeypatch.setattr(module, "plugins", lambda: found)
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
    assert "compaction service: local" in result.output
    assert "state backend: heap" in result.output


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
    (plugin, *_) = json.loads(run("plugins", "--json").output)
    assert plugin["offers"]["compaction service"] == ["local"]
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
    alone.register(builtin_plugin, "forebay-state-api")
    for module in (main, plugins_and_config, conf_options):
        monkeypatch.setattr(module, "plugins", lambda: alone)
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


@pytest.mark.parametrize("arguments", [["--help"], ["plugins"], ["nothing"]])
def test_a_broken_plugin_is_one_line_too(run: Any, found: Plugins, arguments: list[str]) -> None:
    found.register(toy_plugin(), "copy-of-toy")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "'fail': toy and copy-of-toy" in result.output
    assert len(result.output.splitlines()) == 1


def test_wrong_usage(run: Any, tmp_path: Path) -> None:
    assert run("nothing").exit_code == 2
    assert "expected key=value" in run("config", "--conf", "x").output
    file = tmp_path / "spark-defaults.conf"
    file.write_text("alone\n")
    assert "line 1: expected a key" in run("config", "--properties-file", str(file)).output
