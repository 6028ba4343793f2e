"""Reading the session's settings, from a JVM, where pyspark lists them and where only SQL does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.session import configuration

SETTINGS = {
    "spark.forebay.state.dir": "/data/token-store",
    "spark.forebay.storage.aws_secret_access_key": "hush",
    "spark.speculation": "true",
    "spark.app.name": "other",
}
REUSE = "spark.python.worker.reuse"
OURS = {key: value for key, value in SETTINGS.items() if key != "spark.app.name"}


class OldConf:
    """The runtime configuration of Connect before pyspark 4, without ``getAll``."""

    def get(self, key):
        return SETTINGS[key]


class Conf(OldConf):
    getAll = SETTINGS


class ClassicConf(OldConf):
    """A configuration in a JVM, which gives the names of its settings as one text."""

    def __init__(self):
        names = SimpleNamespace(mkString=lambda between: between.join(SETTINGS))
        self._jconf = SimpleNamespace(getAll=lambda: SimpleNamespace(keySet=lambda: names))


class ConnectSession(SimpleNamespace):
    __module__ = "pyspark.sql.connect.session"


def redacted(statement):
    """Return the rows of ``SET``, in which values that look like secrets are redacted."""
    assert statement == "SET"
    rows = [
        SimpleNamespace(
            key=key, value="*********(redacted)" if "secret" in key or "token" in value else value
        )
        for key, value in SETTINGS.items()
    ]
    return SimpleNamespace(collect=lambda: rows)


def test_settings_that_sql_would_redact_are_read_as_they_are():
    assert configuration(ConnectSession(conf=OldConf(), sql=redacted)) == OURS


def test_settings_where_pyspark_lists_them():
    assert configuration(ConnectSession(conf=Conf())) == OURS


def test_settings_of_a_session_in_a_jvm():
    assert configuration(SimpleNamespace(conf=ClassicConf())) == OURS


@pytest.mark.parametrize(
    ("given", "application", "expected"),
    [({}, {}, 0), ({}, {REUSE: "false"}, 1), ({REUSE: "False"}, {}, 1)],
)
def test_workers_that_end_with_their_task_are_worth_one_line(caplog, given, application, expected):
    sessions._warn_of_single_use.cache_clear()
    session = SimpleNamespace(sparkContext=SimpleNamespace(_conf=application))
    for _ in range(3):
        sessions.warn_unless_workers_stay(session, given)
    lines = [record.message for record in caplog.records]
    assert len(lines) == expected
    assert all("spark.python.worker.reuse is false" in line for line in lines)
