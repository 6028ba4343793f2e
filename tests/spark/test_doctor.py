"""The doctor on a local session; ``tests/cluster`` has tests on separate executors."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import doctor, keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import ConfigurationError, PluginError
from forebay_state_api.plugins import plugins

pytestmark = pytest.mark.spark


def test_a_local_session_has_no_problem_and_keeps_nothing(spark, tmp_path):
    found = doctor(spark, str(tmp_path / "state"))
    assert found.problems == [], str(found)
    assert found.notes == [], str(found)
    assert len(found.processes) == 2, str(found)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_state_directory_that_cannot_be_is_said_of_driver_and_executor(spark, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file, not a directory"):
        doctor(spark, str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r"state_dir"):
        doctor(spark)


class Counted(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value(), plugins().problems()


@pytest.fixture
def broken_plugin(spark, tmp_path, monkeypatch):
    """Install a plugin that cannot be imported, for the driver and for workers of their own."""
    site = tmp_path / "site"
    info = site / "acme_states-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-states\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[forebay]\nacme = acme_states\n")
    (site / "acme_states.py").write_text("raise ImportError('no libacme')\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(site))
    plugins.cache_clear()
    yield
    monkeypatch.undo()
    plugins.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("broken_plugin")
def test_a_job_on_heap_runs_beside_a_broken_plugin_that_the_doctor_names(stage):
    found = doctor(stage.spark)
    for process in found.processes:
        assert any("acme-states" in one and "no libacme" in one for one in process.refusals)
    assert found.problems
    rows = stage.spark.createDataFrame([("ann",), ("ann",)], "user string")
    counted = keyed(rows, "user", uid="u", parallelism=1, backend="heap")
    out = counted.process(Counted(), "user string, n long, broken array<string>").collect()
    assert [(row.user, row.n) for row in out] == [("ann", 1), ("ann", 2)]
    assert all("no libacme" in row.broken[0] for row in out), "the worker has it too"
    with pytest.raises(PluginError, match="no libacme"):
        keyed(rows, "user", uid="u", backend="acme")
