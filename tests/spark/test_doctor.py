"""The doctor on a local session; ``tests/cluster`` has tests on separate executors."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import doctor
from forebay_state_api.errors import ConfigurationError

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
