"""The command line of the demo."""

from __future__ import annotations

import signal
from importlib.metadata import PackageNotFoundError

import pytest
from click.testing import CliRunner

from forebay_spark_runtime.demo import flights, run, spark
from forebay_spark_runtime.demo.command import demo
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins


def test_the_command_is_there():
    assert plugins().commands()["demo"] is demo


def test_help_says_what_it_does():
    text = CliRunner().invoke(demo, ["--help"]).output
    assert "Which aircraft carried delay" in text
    assert "--parallelism" in text


@pytest.mark.parametrize("options", [["--parallelism", "0"], ["--months", "13"]])
def test_numbers_are_checked(options):
    assert CliRunner().invoke(demo, options).exit_code == 2


def test_kill_needs_posix_signals(monkeypatch):
    monkeypatch.delattr(signal, "SIGKILL")
    result = CliRunner().invoke(demo, ["--kill"])
    assert result.exit_code == 2
    assert "--kill needs POSIX signals" in result.output


def test_missing_flights_are_reported_before_anything_is_done(monkeypatch, tmp_path):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(run, "require_java", lambda: None)
    monkeypatch.setattr(flights, "distribution", missing)
    result = CliRunner().invoke(demo, ["--dir", str(tmp_path / "demo")])
    assert isinstance(result.exception, ConfigurationError)
    assert "pip install 'forebay-spark-runtime[demo]'" in str(result.exception)
    assert not (tmp_path / "demo").exists()


def test_missing_java_is_reported_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Spark needs Java 17"):
        spark.require_java()
    result = CliRunner().invoke(demo, ["--dir", str(tmp_path / "demo")])
    assert isinstance(result.exception, ConfigurationError)
    assert not (tmp_path / "demo").exists()
