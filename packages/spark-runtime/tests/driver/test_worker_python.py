"""The choice of the Python that a session's workers run."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay_spark_runtime.driver.worker_python import use_python_of_driver


def session_of(master="local[2]", python="python3", **conf):
    context = SimpleNamespace(
        master=master,
        pythonExec=python,
        getConf=lambda: SimpleNamespace(get=conf.get),
    )
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A path with another ``python3``, which is a link to this one, as in an environment."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "python3").symlink_to(os.path.realpath(sys.executable))
    return str(tmp_path / "python3")


def test_a_local_session_gets_the_drivers(elsewhere, caplog):
    session = session_of()
    use_python_of_driver(session)
    assert session.sparkContext.pythonExec == sys.executable
    assert not caplog.records


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_a_cluster_keeps_its_own(elsewhere, master):
    session = session_of(master)
    use_python_of_driver(session)
    assert session.sparkContext.pythonExec == "python3"


def test_the_path_of_an_active_environment_is_left_alone(elsewhere, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    session = session_of(python=Path(sys.executable).name)
    use_python_of_driver(session)
    assert session.sparkContext.pythonExec == Path(sys.executable).name


@pytest.mark.parametrize("by", ["environment", "setting"])
def test_another_one_that_was_chosen_is_kept_and_warned_of(elsewhere, monkeypatch, caplog, by):
    conf = {"spark.pyspark.python": elsewhere} if by == "setting" else {}
    if by == "environment":
        monkeypatch.setenv("PYSPARK_PYTHON", elsewhere)
    session = session_of(python=elsewhere, **conf)
    with caplog.at_level(logging.WARNING):
        use_python_of_driver(session)
    assert session.sparkContext.pythonExec == elsewhere
    assert f"PYSPARK_PYTHON is {elsewhere}, and this process runs {sys.executable}" in caplog.text
