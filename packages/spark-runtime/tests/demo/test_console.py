"""``--console`` without a console; `tests/test_demo.py` starts one."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from forebay_spark_runtime.demo import console, run
from forebay_spark_runtime.demo.command import demo
from forebay_spark_runtime.demo.directory import DemoDirectory
from forebay_state_api.errors import ConfigurationError


def test_a_missing_console_is_reported_before_anything_is_done(monkeypatch, tmp_path):
    class Without:
        def commands(self):
            return {}

    monkeypatch.setattr(run, "require_java", lambda: None)
    monkeypatch.setattr(run, "require_flights", lambda: None)
    monkeypatch.setattr(console, "plugins", Without)
    result = CliRunner().invoke(demo, ["--dir", str(tmp_path / "demo"), "--console"])
    assert isinstance(result.exception, ConfigurationError)
    assert "pip install forebay-console" in str(result.exception)
    assert not (tmp_path / "demo").exists()


def test_a_console_that_does_not_start_is_an_error_that_names_its_log(monkeypatch, tmp_path):
    monkeypatch.setattr(console, "_FOREBAY", "raise SystemExit('no console today')")
    directory = DemoDirectory(tmp_path / "demo")
    with pytest.raises(ConfigurationError, match="did not start"):
        console.ConsoleProcess(directory)
    assert "no console today" in directory.console_log.read_text()
