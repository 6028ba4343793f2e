"""``doctor`` names each difference that is planted in one of two executors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PLANTED = {
    "package_missing": "xxhash is not installed. Install xxhash==",
    "forebay_missing": "storage was not probed, for forebay_state_api",
    "another_version": "forebay-state-api is 0.0.9, and 0.1.0 on the driver",
    "another_pyarrow": "pyarrow is 15.0.0, and",
    "another_python": "Python is 3.9, and 3.1",
    "a_plugin_missing": "plugins are",
    "clock_ahead": "from the driver's, and TTL and processing-time timers depend on it",
    "no_temporary_files": "no temporary file can be written",
    "storage_without_list": "a list after a put shows it: list: access denied",
    "storage_without_delete": "a deleted object is gone: delete: access denied",
    "storage_without_put": "an object can be put: put: access denied",
    "another_directory": "is different storage here: the object written by the driver cannot be",
}


@pytest.fixture(scope="module")
def found(run_on_cluster, tmp_path_factory):
    """Return the doctor's findings for each planted difference, and without one."""
    folder = tmp_path_factory.mktemp("planted")
    lines = run_on_cluster(
        "examine.py",
        folder / "state",
        "nothing",
        *PLANTED,
        conf={
            "spark.python.daemon.module": "planting_daemon",
            "spark.python.worker.reuse": "false",
        },
        environment={
            "PLANT": str(folder / "plant"),
            "PYTHONPATH": str(Path(__file__).parent / "planted"),
        },
    )
    return {one["kind"]: one for one in map(json.loads, filter(lambda x: x[:1] == "{", lines))}


def test_equal_executors_are_all_asked_and_have_no_problem(found):
    one = found["nothing"]
    assert len(one["places"]) == 3, one["text"]
    assert one["problems"] == [], one["text"]
    assert one["notes"] == [], one["text"]


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_different_in_one_executor_is_named(found, kind):
    one = found[kind]
    named = [line for line in one["problems"] if PLANTED[kind] in line]
    assert len(named) == 1, one["text"]
    assert named[0].startswith("executor "), one["text"]
    assert len({line.partition(":")[0] for line in one["problems"]}) == 1, one["text"]
